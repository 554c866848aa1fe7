"""Hears of Triton kernels as they are compiled or loaded; without Triton it hears nothing.

Kernels compiled by a compiler's helper processes are part of a compilation and do not appear here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from capture.events import Event, Location


class KernelListener:
    """Sends an event to `sink` for each Triton kernel built in this process, or loaded from Triton's disk cache.

    A listener that was set before is still called. `available` is False where Triton is not installed or has no
    such hook. Ends with `detach`.
    """

    def __init__(self, sink: Callable[[Event], None]) -> None:
        self._sink = sink
        self._knobs: Any = None
        try:
            from triton import knobs
        except ImportError:
            return
        if not hasattr(knobs, "compilation") or not hasattr(knobs.compilation, "listener"):
            return
        self._knobs = knobs.compilation
        self._previous = self._knobs.listener
        self._knobs.listener = self._heard

    @property
    def available(self) -> bool:
        """Whether kernels can be heard."""
        return self._knobs is not None

    def detach(self) -> None:
        """Stops listening; a listener that was set on top of this one stays."""
        self._sink = lambda event: None
        if self._knobs is not None and self._knobs.listener == self._heard:
            self._knobs.listener = self._previous

    def _heard(self, **heard: Any) -> None:
        self._sink(kernel_event(heard.get("src"), heard.get("times"), bool(heard.get("cache_hit"))))
        if self._previous is not None:
            self._previous(**heard)


def kernel_event(source: Any, times: Any, cache_hit: bool) -> Event:
    """The event of one compiled kernel, from what Triton tells its listener."""
    function = getattr(source, "fn", None)
    name = getattr(source, "name", None) or getattr(function, "__name__", "a kernel")
    python = getattr(function, "fn", None)
    file = line = None
    if inspect.isfunction(python):
        file, line = python.__code__.co_filename, python.__code__.co_firstlineno
    signature = ", ".join(
        f"{key}: {kind}" for key, kind in (getattr(source, "signature", None) or {}).items()
    )
    seconds = getattr(times, "total", 0) / 1e6
    how = "loaded from the disk cache" if cache_hit else f"compiled in {seconds:.2f} s"
    return Event(
        "triton",
        f"{name} {how} for ({signature})",
        Location(file or "", line or 0, str(name)),
        advice="Launch this specialisation once before sealing, or exempt the changing integer with do_not_specialize.",
    )
