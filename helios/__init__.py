"""Helios: a compile-first LLM inference engine for Qwen.

`from helios import LLM, SamplingParams` is the offline API; both load on first use, so that `import helios` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helios.completion import Completion
    from helios.llm import LLM
    from helios.sampling import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]

_HOMES = {"LLM": "helios.llm", "Completion": "helios.completion", "SamplingParams": "helios.sampling"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
