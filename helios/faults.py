"""Tells a refusal, whose sentence is all that a user needs, from a bug, whose traceback somebody has to read."""

from __future__ import annotations

REFUSALS = (ValueError, OSError)  # ConfigError and the loaders' errors are ValueErrors


def is_refusal(error: BaseException) -> bool:
    """Whether `error` is one of Helios' own sentences: a ValueError or OSError raised in a file of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return isinstance(error, REFUSALS) and module.split(".")[0] == "helios"
