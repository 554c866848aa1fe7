"""Refusal: what a person can put right, told as one sentence.

Whatever else is raised is a bug, and shows its traceback.
"""

from __future__ import annotations


class Refusal(ValueError):  # noqa: N818 - reads as what happened
    """A setting, a request or a file that cannot be used. The message is the whole sentence."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """field: the setting, parameter or file's field that the sentence is about, where it is about one."""
        super().__init__(message)
        self.field = field
