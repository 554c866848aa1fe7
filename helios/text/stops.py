"""StopStrings: finds the first of several stop strings in a text that arrives in pieces.

Text that may turn out to be the beginning of a stop string is held back until that is decided.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """One stop string. `matched` is the length of its longest prefix that ends the text so far
    (the automaton of Knuth, Morris and Pratt, 1977: constant amortised work a character)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0] * len(stop)  # [i]: longest proper prefix of stop[: i + 1] that also ends it
        length = 0
        for i in range(1, len(stop)):
            while length and stop[i] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[i] == stop[length]
            self._fallback[i] = length

    def step(self, char: str) -> bool:
        """Takes one character; True when it completes the stop string."""
        while self.matched and char != self.stop[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        self.matched += char == self.stop[self.matched]
        return self.matched == len(self.stop)

    def pass_over(self) -> None:
        """Go on after a stop string that was complete and did not count; the next may begin within it."""
        self.matched = self._fallback[-1]


class StopStrings:
    """The stop string that is complete first ends the text; of two complete at the same character, the longer.
    So the result does not depend on how the text was split."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if not all(stops):
            raise ValueError("stop must not hold an empty string")
        # Longest first, so that the first to complete at a character is the one to report.
        self._matchers = [_Matcher(stop) for stop in sorted(set(stops), key=lambda s: (-len(s), s))]
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Takes more text. Returns what may be shown now, and the stop string if one is complete; nothing of it, and
        nothing after it, is ever shown. armed: False while it is too early for an end: what this text completes is
        text like any other, and what it begins may count later."""
        if self._hit is not None:
            return "", self._hit
        if not self._matchers:
            return text, None
        text, taken = self._held + text, len(self._held)
        for end in range(taken + 1, len(text) + 1):
            for matcher in self._matchers:
                if not matcher.step(text[end - 1]):
                    continue
                if armed:
                    self._hit, self._held = matcher.stop, ""
                    return text[: end - len(matcher.stop)], matcher.stop
                matcher.pass_over()
        shown = len(text) - max(m.matched for m in self._matchers)
        self._held = text[shown:]
        return text[:shown], None

    def finish(self) -> str:
        """The held-back text, when no more comes; or none that belongs to it, and a stop string begins anew."""
        held, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.matched = 0
        return held
