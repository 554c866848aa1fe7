"""What the context leaves for an answer, and the one sentence for a prompt that leaves it nothing."""

from __future__ import annotations

from helios.schedule.refusal import NeverFits


def room_for_answer(prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that the context leaves after a prompt, at least 1. Raises NeverFits."""
    room = max_model_len - prompt_tokens
    if room < 1:
        raise NeverFits(
            f"the prompt has {prompt_tokens} tokens, and the context of this model holds {max_model_len} with at "
            "least one new token; shorten the prompt",
            field="prompt",
        )
    return room
