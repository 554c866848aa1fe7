"""What a person sees while the engine starts."""

from __future__ import annotations

import io

from helios.display import StartupDisplay
from helios.engine.messages import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


STEPS = [
    Progress("load weights"),
    Progress("load weights", seconds=1.25),
    Progress("capture graphs"),
    Progress("capture graphs", done=1, total=2),
    Progress("capture graphs", done=2, total=2),
    Progress("capture graphs", seconds=3.0),
]


def test_phases_are_lines_with_seconds_where_there_is_no_terminal():
    out = io.StringIO()
    with StartupDisplay(out) as display:
        for step in STEPS:
            display(step)
    assert out.getvalue().splitlines() == ["load weights            1.2 s", "capture graphs          3.0 s"]


def test_captures_have_a_bar_in_a_terminal():
    out = Terminal()
    with StartupDisplay(out) as display:
        for step in STEPS:
            display(step)
    assert "0/2" in out.getvalue()
    assert "capture graphs" in out.getvalue().splitlines()[-1]
