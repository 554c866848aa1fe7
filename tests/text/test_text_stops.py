"""StopStrings: the same cut for every split of the text, and no character of a stop string gets out."""

import random
import time

import pytest

from helios.text.stops import StopStrings


def feed(stops, pieces):
    """(pieces shown, stop string or None)"""
    search = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, hit = search.push(piece)
        shown.append(text)
        if hit is not None:
            return shown, hit
    return [*shown, search.finish()], None


def two_cuts(text):
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            yield [text[:i], text[i:j], text[j:]]


def expected(text, stops):
    """The same rule, written down directly: the earliest end wins, then the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("text", "stops", "shown", "hit"),
    [
        ("alpha beta gamma delta", ["ta gam"], "alpha be", "ta gam"),
        ("alpha beta game over", ["ta gamma"], "alpha beta game over", None),
        ("aaab", ["aab"], "a", "aab"),
        ("one two three", ["three", "two"], "one ", "two"),
        ("abcd", ["abcd", "bc"], "a", "bc"),
        ("abc", ["c", "abc", "bc"], "", "abc"),
        ("ends half st", ["stop"], "ends half st", None),
        ("no stops", [], "no stops", None),
    ],
)
def test_every_split_gives_the_same_cut(text, stops, shown, hit):
    for pieces in two_cuts(text):
        got, found = feed(stops, pieces)
        assert ("".join(got), found) == (shown, hit)


def test_text_is_held_only_while_it_may_begin_a_stop():
    search = StopStrings(["</end>"])
    assert search.push("a <") == ("a ", None)
    assert search.push("/e") == ("", None)
    assert search.push("x<") == ("</ex", None)
    assert search.finish() == "<"


def test_random_texts_and_splits_follow_the_rule():
    draw = random.Random(2)
    for _ in range(2000):
        text = "".join(draw.choices("ab\n", k=draw.randrange(24)))
        stops = ["".join(draw.choices("ab\n", k=draw.randrange(1, 6))) for _ in range(draw.randrange(4))]
        pieces, rest = [], text
        while rest:
            n = draw.randrange(5)
            pieces.append(rest[:n])
            rest = rest[n:]
        got, hit = feed(stops, pieces)
        assert ("".join(got), hit) == expected(text, stops)


def test_nothing_comes_out_after_the_stop():
    search = StopStrings(["b"])
    assert search.push("abc") == ("a", "b")
    assert search.push("more") == ("", "b")
    assert search.finish() == ""


@pytest.mark.parametrize(
    ("stop", "early", "late", "shown", "hit"),
    [
        ("ab", "xab", "yab", "xaby", "ab"),
        ("ab", "xa", "b", "x", "ab"),  # begun too early, complete in time
        ("a", "aa", "xa", "aax", "a"),
        ("aba", "aba", "ba", "ab", "aba"),  # the next one begins within the one that did not count
        ("ab", "ab", "", "ab", None),
    ],
)
def test_a_stop_that_comes_too_early_is_text(stop, early, late, shown, hit):
    search = StopStrings([stop])
    first, none = search.push(early, armed=False)
    rest, found = search.push(late)
    assert none is None
    assert (first + rest + ("" if found else search.finish()), found) == (shown, hit)


def test_after_finish_a_stop_begins_anew():
    search = StopStrings(["ab"])
    assert search.push("xa") == ("x", None)
    assert search.finish() == "a"
    assert search.push("b") == ("b", None)


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_time_grows_with_the_text_and_not_with_its_square():
    """A long stop string that nearly matches all the way is the hard case: a rescan takes minutes here."""
    search = StopStrings(["a" * 2000 + "b"])
    start = time.perf_counter()
    for _ in range(200_000):
        search.push("a")
    assert time.perf_counter() - start < 20
