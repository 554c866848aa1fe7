"""The step's state: every tensor that a step reads or writes, declared once, and where each lies in memory.

Staging layout, device views, the compiler's marks, the step's arguments, what is watched and what pads a tick all follow
from the declarations here and in helios.sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from capture.ladder import Bucket
from helios.entry import Entry, Padding, Role, Sizes
from helios.sampler.sampler import ENTRIES as SAMPLER_ENTRIES

ALIGNMENT = 64  # bytes; kernels compiled for aligned inputs would copy a misaligned one
RECORD_ALIGNMENT = 16  # the least that the compiler takes for aligned

ROWS = (
    Entry("seats", torch.int32, ("rows",), Role.INPUT, Padding.SCRATCH_SEAT),
    Entry("query_start_loc", torch.int32, ("rows",), Role.INPUT, Padding.TICK_TOKENS),
    Entry("query_lens", torch.int32, ("rows",), Role.INPUT),
    Entry("num_outputs", torch.int32, ("rows",), Role.INPUT),
)
"""A row's seat, its first token in the tick, its tokens, and the most ids that it yields (0: a prompt chunk in the middle)."""

TOKENS = (
    Entry("input_ids", torch.int32, ("tokens",), Role.INPUT),
    Entry("from_device", torch.int32, ("tokens",), Role.INPUT),
    Entry("token_seats", torch.int32, ("tokens",), Role.INPUT, Padding.SCRATCH_SEAT),
    Entry("token_offsets", torch.int32, ("tokens",), Role.INPUT),
)
"""A token's id, or 1 in from_device where it is its seat's last_ids[token_offsets]; its seat; its place within its row."""

SEQUENCES = (
    Entry("page_table", torch.int32, ("seats", "pages_per_seat"), Role.SEAT),
    Entry("num_computed_tokens", torch.int32, ("seats",), Role.SEAT),
    Entry("last_ids", torch.int32, ("seats", "outputs"), Role.TABLE),
)
"""By seat: its pages in order of position, the tokens whose KV is written, and the ids that come next. The step moves the
latter two on, so that the next tick can be planned, and launched, before anyone on the host knows them."""

LOGITS = Entry("logits", None, ("rows", "padded_vocab"), Role.WORK)
"""Of each row's last token: what the forward half of a step leaves to the sampling half."""

FORWARD = (*TOKENS, *ROWS, *SEQUENCES, LOGITS)
"""The forward half's arguments, in order; the KV pool follows them."""

SAMPLING = (*ROWS, *SEQUENCES, LOGITS, *SAMPLER_ENTRIES)
"""What the sampling half is given, by name."""

ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in (*FORWARD, *SAMPLER_ENTRIES)}


def varying_dimensions(num_layers: int) -> dict[int | str, dict[int, str]]:
    """For capture.CompiledStep: which dimensions of which argument of the forward change from bucket to bucket, or with
    the pool."""
    marks: dict[int | str, dict[int, str]] = {
        i: entry.varying() for i, entry in enumerate(FORWARD) if entry.varying()
    }
    return marks | {len(FORWARD) + pool: {0: "pages"} for pool in range(2 * num_layers)}


def of_role(*roles: Role) -> list[Entry]:
    return [entry for entry in ENTRIES.values() if entry.role in roles]


@dataclass(frozen=True)
class Place:
    """Bytes offset .. offset + nbytes of a buffer, as `size` numbers of `dtype`."""

    entry: Entry
    offset: int
    size: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        assert self.entry.dtype is not None
        return self.entry.dtype

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.size) * self.dtype.itemsize

    def view(self, buffer: Tensor) -> Tensor:
        """The entry in a flat buffer of bytes."""
        return buffer[self.offset : self.end].view(self.dtype).view(self.size)


def lay_out(
    entries: Sequence[Entry], sizes: Sizes, start: int = 0, alignment: int = ALIGNMENT
) -> list[Place]:
    """Places of entries one after the other from byte `start` on."""
    places = []
    for entry in entries:
        place = Place(entry, start, entry.size(sizes))
        places.append(place)
        start = align(place.end, alignment)
    return places


def align(size: int, alignment: int = ALIGNMENT) -> int:
    return math.ceil(size / alignment) * alignment


class Layout:
    """Where inputs and seats' records lie. The rows' inputs come first and at the same places in every bucket, since the
    sampling half serves all of them; the tokens' follow.

    sizes: every size but tokens and rows; "seats" counts the scratch seat, which is the last.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = dict(sizes)
        self.scratch_seat = sizes["seats"] - 1
        self.max_rows = self.scratch_seat
        self.rows = lay_out(ROWS, {**sizes, "rows": self.max_rows})
        one_seat = {**sizes, "seats": 1}
        self.record = lay_out(of_role(Role.SEAT), one_seat, alignment=RECORD_ALIGNMENT)
        self.record_bytes = align(self.record[-1].end)
        self.outputs = lay_out(
            sorted(of_role(Role.OUTPUT), key=lambda entry: entry.name not in READ_ALWAYS),
            {**sizes, "rows": self.max_rows},
        )

    def tokens(self, bucket: Bucket) -> list[Place]:
        return lay_out(TOKENS, {**self.sizes, "tokens": bucket.tokens}, align(self.rows[-1].end))

    def input_bytes(self, bucket: Bucket) -> int:
        return align(self.tokens(bucket)[-1].end)


READ_ALWAYS = ("sampled_ids", "num_sampled", "finite")
"""Outputs that every tick is read for; they lie first, so that one short copy brings them."""


class StepState:
    """The tensors, allocated once on the device.

    inputs: what the staging buffer is copied to. records: uint8 [seats, bytes], the SEAT entries of a seat side by side,
    so that a request's admission is one copy. results: uint8, the OUTPUT entries.
    """

    def __init__(
        self, layout: Layout, buckets: Sequence[Bucket], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layout = layout
        self.device = device
        full = {**layout.sizes, "rows": layout.max_rows}
        self.inputs = torch.zeros(
            max(layout.input_bytes(bucket) for bucket in buckets), dtype=torch.uint8, device=device
        )
        self.records = torch.zeros(
            layout.sizes["seats"], layout.record_bytes, dtype=torch.uint8, device=device
        )
        self.results = torch.zeros(align(layout.outputs[-1].end), dtype=torch.uint8, device=device)
        self._by_seat = {place.entry.name: _squeezed(place, self.records) for place in layout.record}
        for place in layout.record:
            self._by_seat[place.entry.name].fill_(padding_number(place.entry, layout))
        for entry in of_role(Role.TABLE):
            self._by_seat[entry.name] = torch.full(
                entry.size(full), padding_number(entry, layout), dtype=entry.dtype, device=device
            )
        self._by_row = {place.entry.name: place.view(self.inputs) for place in layout.rows}
        self._by_row |= {place.entry.name: place.view(self.results) for place in layout.outputs}
        for entry in of_role(Role.WORK):
            self._by_row[entry.name] = torch.zeros(
                entry.size(full), dtype=entry.dtype or dtype, device=device
            )
        self._by_token = {
            bucket: {place.entry.name: place.view(self.inputs) for place in layout.tokens(bucket)}
            for bucket in buckets
        }
        self._forward = {
            bucket: [self._cut(entry, bucket, bucket.rows) for entry in FORWARD] for bucket in buckets
        }

    def __getitem__(self, name: str) -> Tensor:
        """An entry by seat, or by row in full."""
        return self._by_seat[name] if name in self._by_seat else self._by_row[name]

    def forward_arguments(self, bucket: Bucket) -> list[Tensor]:
        """The forward half's arguments for a bucket, in the order of FORWARD: the same memory every time."""
        return self._forward[bucket]

    def sampling(self, rows: int) -> dict[str, Tensor]:
        """The sampling half's tensors, those with rows cut to `rows`."""
        return {entry.name: self._cut(entry, None, rows) for entry in SAMPLING}

    @property
    def watched(self) -> dict[str, Tensor]:
        """What must stay where it is while graphs live, by names for a person."""
        whole = {"inputs": self.inputs, "seat records": self.records, "results": self.results}
        loose = {entry.name.replace("_", " "): self[entry.name] for entry in of_role(Role.TABLE, Role.WORK)}
        return whole | loose

    def _cut(self, entry: Entry, bucket: Bucket | None, rows: int) -> Tensor:
        if bucket is not None and entry.name in self._by_token[bucket]:
            return self._by_token[bucket][entry.name]
        return self._by_seat[entry.name] if entry.name in self._by_seat else self._by_row[entry.name][:rows]


def padding_number(entry: Entry, layout: Layout) -> float:
    """An entry's padding where it does not depend on the tick."""
    if entry.padding is Padding.SCRATCH_SEAT:
        return layout.scratch_seat
    return 0 if isinstance(entry.padding, Padding) else entry.padding


def host_views(places: Sequence[Place], buffer: Tensor) -> dict[str, np.ndarray]:
    """Places of a flat buffer as numpy arrays by name."""
    return {place.entry.name: place.view(buffer).numpy() for place in places}


def record_views(layout: Layout, records: Tensor) -> dict[str, np.ndarray]:
    """The SEAT entries of records on the host, numpy arrays [seats, ...] by name."""
    return {place.entry.name: _squeezed(place, records).numpy() for place in layout.record}


def _squeezed(place: Place, records: Tensor) -> Tensor:
    """An entry of one number a seat is [seats], not [seats, 1]."""
    column = records[:, place.offset : place.end].view(place.dtype)
    return column if len(place.size) > 1 else column[:, 0]
