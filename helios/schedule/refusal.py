"""What the scheduler refuses at once, and the sentences it says: requests it cannot take now, and those it never can."""

from __future__ import annotations

from helios.faults import Refusal
from helios.schedule.request import Request


class QueueFull(Refusal):
    """The waiting queue is full; the same request may be accepted a little later."""


class NeverFits(Refusal):
    """The request is larger than this engine can ever hold; waiting would not help."""


def refuse_what_cannot_run(request: Request, max_model_len: int, page_size: int, total_pages: int) -> None:
    """Raise NeverFits for a request that is too large even alone, Refusal for one that makes no sense."""
    if not request.prompt:
        raise Refusal("the prompt has no tokens; it must have at least 1", field="prompt")
    if request.max_new < 1:
        raise Refusal(f"max_new must be at least 1, got {request.max_new}", field="max_tokens")
    sizes = f"a prompt of {len(request.prompt)} tokens and {request.max_new} new ones"
    length = len(request.prompt) + request.max_new
    pages = -(-length // page_size)
    if length > max_model_len:
        raise NeverFits(
            f"{sizes} make {length}, and the model's context holds {max_model_len}; "
            "shorten the prompt or lower max_tokens"
        )
    if pages > total_pages:
        raise NeverFits(
            f"{sizes} need {pages} pages of {page_size} tokens, and the whole KV pool has {total_pages}; "
            "shorten the prompt, lower max_tokens, or give the engine a larger pool"
        )
