"""The report: built from an audit, saved, read back, rendered; and every verdict line counts."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from capture.audit import VERDICT, Audit, PhaseTime
from capture.environment import CacheFolder, describe_cache, describe_environment
from capture.events import CacheLookup, Compilation, Event, Location
from capture.graphs import GraphRecord
from capture.html import render_html
from capture.ladder import Bucket, Ladder
from capture.markdown import bytes_text, render_markdown
from capture.measure import Timing
from capture.report import BucketReport, CaptureReport, build_report, check, load, save, why_missed
from capture.tradeoff import TradeOff

DECODE, PACKED = Bucket("decode", 4, 4), Bucket("packed", 64, 8)


@pytest.fixture
def audit():
    with Audit() as audit:
        yield audit


@pytest.fixture
def report(audit) -> CaptureReport:
    """A clean report of two buckets, one artefact and a drive of three steps."""
    ladder = Ladder([4], [(64, 8)])
    with audit.phase("compile"):
        audit.tag = (PACKED, None)
        lookups = (CacheLookup("fx_graph", "miss", "key1"),)
        compilation = Compilation(
            "0/0", 5.0, 1.5, 3.5, 0.5, guards=40, graph_ops=90, kernels=12, cache=lookups
        )
        audit.record(
            Event("compilation", "first compilation", Location("step.py", 7, "step"), compilation=compilation)
        )
    audit.seal()
    for tokens, rows in ((3, 3), (4, 4), (40, 8)):
        ladder.fit(tokens, rows)
    return build_report(
        "Qwen/Qwen3 tiny",
        "CPU",
        audit,
        ladder,
        graphs={DECODE: GraphRecord(DECODE, 0.1, 0.25, 2**20, 2**21, {"kernel": 30, "memcpy": 2})},
        timings={DECODE: Timing(2.0, 2.5, eager_ms=8.0, floor_ms=1.5)},
        warm=[PhaseTime("compile", 0.0, 2.0)],
        cache_folder=CacheFolder("/cache", 3, 2048),
        trade_off=[TradeOff(1, 3, 4, 0.25)],
        environment={"torch": "2.13", "flags": "A=1 <b>"},
        notes=["made by hand"],
    )


def broken(report: CaptureReport, name: str, count: int, *events: Event) -> CaptureReport:
    verdict = (
        replace(line, count=count, events=events) if line.name == name else line for line in report.verdict
    )
    return replace(report, verdict=tuple(verdict))


def test_a_bucket_has_its_own_costs_and_shares_the_artefact(report):
    decode, packed = report.buckets
    assert (decode.name, decode.compile_seconds, decode.cache, decode.guards) == ("decode 4", 0, "shared", 40)
    assert (decode.kernels, decode.graph_nodes, decode.capture_ms, decode.pool_bytes) == (
        30,
        32,
        250.0,
        2**20,
    )
    assert (decode.speedup, decode.floor_fraction) == (4.0, 0.75)
    assert decode.waste == pytest.approx(1 / 8)
    assert (packed.compile_seconds, packed.dynamo_seconds, packed.inductor_seconds) == (5.0, 1.5, 3.5)
    assert (packed.cache, packed.kernels, packed.replay_ms, packed.speedup) == ("miss", 12, None, None)
    assert report.ticks == 3
    assert report.waste == pytest.approx(1 - 47 / 72)
    assert BucketReport("decode", 1, 1).waste is None


def test_a_report_survives_its_file(report, tmp_path):
    paths = save(report, tmp_path / "reports")
    assert sorted(path.name for path in paths.values()) == [
        f"capture-qwen-qwen3-tiny-cpu.{ending}" for ending in ("html", "json", "md")
    ]
    assert load(paths["json"]) == report


def test_a_file_that_is_no_report_is_refused(report, tmp_path):
    (tmp_path / "other.json").write_text('{"name": "x"}')
    with pytest.raises(ValueError, match="is not a capture report"):
        load(tmp_path / "other.json")
    (tmp_path / "newer.json").write_text(replace(report, format=99).to_json())
    with pytest.raises(ValueError, match="format 99"):
        load(tmp_path / "newer.json")


@pytest.mark.parametrize("name", VERDICT)
def test_each_verdict_line_alone_fails_the_check(report, name):
    assert check(report) == 0
    assert check(broken(report, name, 1)) == 1


def test_markdown_puts_the_verdict_first_and_says_what_to_change(report):
    text = render_markdown(report)
    assert "Nothing compiled, broke or fell back to eager after the seal." in text.splitlines()[2]
    assert "| packed 64x8 | 5.00 |" in text
    assert "| compile | 0.00 | 2.00 |" in text
    event = Event(
        "recompile",
        "n == 2",
        Location("model.py", 9, "step", "x * n"),
        ("n == 2", "n == 1", "a", "b", "c"),
        "Pass a tensor.",
        bucket="decode 4",
        tick=17,
    )
    text = render_markdown(broken(report, "late_compilations", 3, event))
    assert "The seal did not hold: 3 compilations after the seal." in text
    assert "- n == 2 at model.py:9 in step (bucket decode 4 tick 17)" in text
    for line in ("`line: x * n`", "`failed guard: n == 1`", "and 1 other guards", "change: Pass a tensor."):
        assert line in text


class Page(HTMLParser):
    """Checks that tags are balanced, and collects the text and everything that would be fetched."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.fetched: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_needs_no_network(report):
    event = Event("refused", "<script>alert(1)</script>", advice="Do not.")
    html = render_html(broken(report, "late_compilations", 9, *[event] * 5))
    page = Page(html)
    assert page.open == []
    assert page.fetched == []
    assert "url(" not in html
    assert "@import" not in html
    assert "<script" not in html  # what the compiler says is text, not markup
    assert 'name="viewport"' in html
    for text in (
        "9 compilations after the seal",
        "the next 2",
        "and 4 more",
        "decode 4",
        "2.00 ms, 75%",
        "A=1 <b>",
    ):
        assert text in page.text


def test_an_empty_report_renders_too():
    empty = CaptureReport("none", "cpu", (), ())
    assert Page(render_html(empty)).open == []
    assert render_markdown(empty).startswith("# Capture report: none on cpu")


def test_a_miss_is_explained_by_the_parts_of_its_key():
    before = CacheLookup("fx_graph", "hit", "old", components=(("gm", "1"), ("device", "2")))
    after = CacheLookup("fx_graph", "miss", "new", components=(("gm", "1"), ("device", "3")))
    assert why_missed(after, [before]) == "fx_graph new: the key changed in device."
    assert "no earlier report" in why_missed(after, [])
    assert "could not be read" in why_missed(replace(after, key="old"), [before])
    assert "does not tell" in why_missed(replace(after, components=()), [before])
    assert "not cacheable, opaque" in why_missed(CacheLookup("fx_graph", "bypass", reason="opaque"), [])


def test_the_environment_and_the_cache_are_described(tmp_path):
    found = describe_environment(torch.device("cpu"), tmp_path)
    assert found["torch"] == torch.__version__
    assert "commit" not in found  # a folder outside of any repository
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"12345")
    assert describe_cache(tmp_path) == CacheFolder(str(tmp_path), 1, 5)
    assert describe_cache(tmp_path / "absent").files == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (512, "512 B"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (5 * 2**30, "5.00 GiB")],
)
def test_bytes_are_written_in_the_unit_that_suits(value, text):
    assert bytes_text(value) == text
