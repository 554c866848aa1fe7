"""StartupDisplay: shows a person what the engine does before it is ready, from the Progress it reports.

One line for each phase that has ended, with its seconds, and a bar for the one that is counting.
"""

from __future__ import annotations

import sys
from typing import NoReturn, Self, TextIO

from tqdm import tqdm

from helios.engine.messages import Progress


class StartupDisplay:
    """Call it with every Progress. The bar is drawn only where `stream` (None: standard error) is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bar: tqdm[NoReturn] | None = None
        self._phase = ""

    def __call__(self, step: Progress) -> None:
        if step.seconds is not None or step.phase != self._phase:
            self.close()
        if step.seconds is not None:
            count = f"  ({step.total})" if step.total else ""
            print(f"{step.phase:<20}{step.seconds:7.1f} s{count}", file=self._stream, flush=True)
            return
        self._phase = step.phase
        if step.total:
            if self._bar is None:
                self._bar = tqdm(
                    total=step.total,
                    desc=step.phase,
                    file=self._stream,
                    leave=False,
                    disable=not self._stream.isatty(),
                    bar_format="{desc:<20}{bar:30} {n_fmt}/{total_fmt} {elapsed}",
                )
            self._bar.update(step.done - self._bar.n)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
