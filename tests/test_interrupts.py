"""Ctrl-C against a stretch of code that must not be cut in two."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from helios.interrupts import uninterrupted


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def guarded(presses: int) -> Iterator[str]:
    """Press Ctrl-C in a guarded block; yields at its end, if that is reached."""
    with uninterrupted():
        for _ in range(presses):
            press_ctrl_c()
        yield "reached the end"


def test_a_first_interrupt_waits_for_the_end_of_the_block():
    block = guarded(presses=1)
    assert next(block) == "reached the end"
    with pytest.raises(KeyboardInterrupt):
        next(block)


def test_a_second_interrupt_does_not_wait():
    with pytest.raises(KeyboardInterrupt):
        next(guarded(presses=2))


def test_the_usual_handler_is_back_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_the_block_comes_through():
    with pytest.raises(RuntimeError, match="inside"), uninterrupted():
        raise RuntimeError("inside")


def test_other_threads_have_nothing_to_guard_against():
    seen = []

    def work() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
