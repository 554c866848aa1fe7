"""The programs beside the suites, each run small from its command line to what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import busy, host, load, offline, plot
from benchmarks.load import Sample, Wording, make_jobs, summarise


def test_host_keeps_its_record(tmp_path: Path) -> None:
    out = tmp_path / "host.json"
    assert host.main(["--max-requests", "4", "--ticks", "5", "--out", str(out)]) == 0
    body = json.loads(out.read_text())
    assert [each["requests"] for each in body["times"]] == [1, 2, 4]
    assert {"plan", "fill", "launch", "read", "commit", "rest"} == set(body["times"][0]["parts"])
    assert {"torch", "commit", "command", "load_average"} <= set(body["environment"])


def test_offline_measures_every_part(tmp_path: Path) -> None:
    """All but start-up, which has a suite of its own."""
    out = tmp_path / "offline.json"
    sizes = "--parts first-token,decode,prefill,workload --requests 3 --lengths 2-8 --first-token-input 4 "
    sizes += "--decode 1x4,2x4 --decode-output 4 --prefill 1x8,2x16,1x1000000 --repeats 1 --no-compile"
    assert offline.main([*sizes.split(), "--device", "cpu", "--model", "tiny", "--out", str(out)]) == 0
    body = json.loads(out.read_text())
    assert [each["requests"] for each in body["decode"]] == [1, 2]
    assert [each["input"] for each in body["prefill"]] == [8, 16]  # what the context cannot hold is left out
    assert body["workload"]["output_tokens"] > 0
    assert body["first_token"]["seconds"] > 0
    assert body["stats"]["capture"]["late_compilations"] == 0


def test_load_counts_what_the_server_sent(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "load.json"
    flags = "--num-requests 4 --concurrency 2 --input-len 64 --output-len 5 --rate 100"
    assert load.main([*flags.split(), "--url", server_url, "--out", str(out)]) == 0
    body = json.loads(out.read_text())
    assert (body["requests"], body["failed"], body["output_tokens"]) == (4, 0, 20)
    assert body["input_tokens"] == pytest.approx(4 * 64, rel=0.2)
    assert body["time_to_first_token"]["p50"] > 0
    assert "output tokens/s" in capsys.readouterr().out


def test_load_reports_failures(server_url: str) -> None:
    """More tokens than the tiny model's context holds."""
    flags = "--num-requests 2 --input-len 100000 --output-len 5"
    assert load.main([*flags.split(), "--url", server_url]) == 1


def test_load_spreads_arrivals_by_rate() -> None:
    jobs = make_jobs([(10, 5)] * 1000, Wording(fixed=4, per_word=2), rate=50, seed=0)
    assert {job.words for job in jobs} == {3}
    assert jobs[-1].due == pytest.approx(1000 / 50, rel=0.2)


def test_load_summary() -> None:
    good = Sample(sent=0.0, arrivals=[0.5, 0.6, 0.9], ended=1.0, prompt_tokens=10, output_tokens=5)
    summary = summarise([good, Sample(sent=0.0, error="status 503: full")], seconds=2.0)
    assert summary["failed"] == 1
    assert summary["output_tokens_per_second"] == 2.5
    assert summary["time_to_first_token"]["p50"] == 0.5
    assert summary["time_per_output_token"]["p50"] == pytest.approx(0.1)
    assert summary["time_between_events"]["max"] == pytest.approx(0.3)


def test_plot_draws_lines_and_bars(tmp_path: Path) -> None:
    def case(name: str, params: dict | None, median: float) -> dict:
        stats = {"median": median, "q1": 0.9 * median, "q3": 1.1 * median}
        return {"fullname": f"benchmarks/test_bench_toy.py::{name}", "params": params, "stats": stats}

    file = tmp_path / "benchmarks-cpu.json"
    cases = [case(f"test_grow[{n}]", {"n": n}, n * 1e-6) for n in (1, 16, 256)]
    file.write_text(json.dumps({"benchmarks": [*cases, case("test_single", None, 1e-3)]}))
    assert plot.main([str(file), "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks-toy.png").stat().st_size > 1000


def test_plot_refuses_another_file(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="has no benchmarks"):
        plot.main([str(file), "--folder", str(tmp_path)])


def test_busy_tells_waiting_from_pauses_within_a_graph() -> None:
    def event(begin: float, end: float, launch: int, category: str = "kernel") -> dict:
        return {
            "cat": category,
            "name": "k",
            "ts": begin,
            "dur": end - begin,
            "args": {"correlation": launch},
        }

    ticks = [event(0, 40, 1), event(50, 90, 1), event(90, 95, 2, "gpu_memcpy"), event(100, 200, 3)]
    summary = busy.summarise([*ticks, {"cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 500}])
    assert summary["kernels_busy"] == pytest.approx((40 + 45 + 100) / 200)
    assert summary["ticks_busy"] == pytest.approx((95 + 100) / 200)
    assert summary["waits"]["median_us"] == 5
    assert summary["launches"] == 3


def test_busy_needs_kernels() -> None:
    with pytest.raises(ValueError, match="no kernels"):
        busy.summarise([])
