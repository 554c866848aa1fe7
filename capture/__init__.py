"""Graph capture as a library: shapes (`Ladder`), compilation (`CompiledStep`), CUDA graphs (`GraphSet`), `Audit`, report.

It imports torch and works on any callable whose sizes fall into buckets; `python -m capture --help` drives one.
"""

from capture.audit import Audit
from capture.compiler import CompiledStep, LateCompilationError
from capture.events import Event
from capture.graphs import GraphRecord, GraphSet, capture_order
from capture.ladder import Bucket, Ladder, default_ladder

__all__ = [
    "Audit",
    "Bucket",
    "CompiledStep",
    "Event",
    "GraphRecord",
    "GraphSet",
    "Ladder",
    "LateCompilationError",
    "capture_order",
    "default_ladder",
]
