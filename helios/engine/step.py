"""The forward half of a step as one function of tensors: from the ids that go in to the logits of each row's last token.

This is what is compiled and captured; it reads and writes only tensors that stay in place between ticks.
"""

from __future__ import annotations

from torch import Tensor, nn

from helios.engine.state import FORWARD
from helios.model.decoder import Decoder
from helios.ops.attention import AttentionMetadata
from helios.ops.locate import locate

LOCATED = (
    "input_ids",
    "from_device",
    "token_seats",
    "token_offsets",
    "seats",
    "query_lens",
    "num_computed_tokens",
    "last_ids",
    "page_table",
)
"""The arguments of helios.ops.locate, in order."""


class ForwardStep(nn.Module):
    """Works out where each token stands from what its seat holds, so that a decoding row needs nothing from the host."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *tensors: Tensor) -> None:
        """tensors: those of FORWARD, then the KV pool (keys of every layer, values of every layer). Flat, so that each
        can be marked for the compiler. Writes the pool and the logits."""
        state = dict(zip((entry.name for entry in FORWARD), tensors, strict=False))
        pools = tensors[len(FORWARD) :]
        layers = len(pools) // 2
        ids, positions, slot_mapping, context_lens = locate(
            *(state[name] for name in LOCATED),
            pools[0].shape[1],
            self.decoder.backend.elementwise,
        )
        metadata = AttentionMetadata(
            positions=positions,
            slot_mapping=slot_mapping,
            page_table=state["page_table"],
            seats=state["seats"],
            query_start_loc=state["query_start_loc"],
            query_lens=state["query_lens"],
            context_lens=context_lens,
        )
        self.decoder(ids, metadata, pools[:layers], pools[layers:], state["logits"])
