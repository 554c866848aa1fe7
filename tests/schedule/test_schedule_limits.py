"""The room that a context leaves for an answer."""

from __future__ import annotations

import pytest

from helios.schedule.refusal import NeverFits
from helios.schedule.room import room_for_answer


@pytest.mark.parametrize(("prompt", "room"), [(1, 99), (98, 2), (99, 1)])
def test_what_the_context_leaves(prompt: int, room: int):
    assert room_for_answer(prompt, 100) == room


@pytest.mark.parametrize("prompt", [100, 5000])
def test_a_prompt_that_leaves_nothing_is_refused(prompt: int):
    with pytest.raises(NeverFits, match=f"the prompt has {prompt} tokens") as refused:
        room_for_answer(prompt, 100)
    assert refused.value.field == "prompt"
