"""uninterrupted(): a stretch of code that Ctrl-C cannot cut in two, because it would leave the engine half way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a first Ctrl-C take effect when the block ends; a second one takes effect at once.

    Does nothing outside the main thread, where no signal arrives, or where SIGINT has no Python handler.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    held: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            usual(number, frame)
        held.append(frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if held:
        usual(signal.SIGINT, held[0])
