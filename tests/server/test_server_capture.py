"""The capture counters in service: JSON, the page that draws them, /health and /metrics when something compiled late."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from helpers.serving import FakeEngine, app_for, client_of

from helios.engine.status import CaptureCounts, CaptureState, EngineStats
from helios.server.capture_page import render_page
from helios.server.prompts import ModelText

pytestmark = pytest.mark.anyio


def late(engine: FakeEngine) -> None:
    """Makes the engine's counters say that something compiled in service."""
    answer = engine.stats

    async def stats(timeout: float) -> EngineStats:
        counts = CaptureCounts(late_compilations=2)
        return msgspec.structs.replace(await answer(timeout), degraded=True, capture=counts, ticks=7)

    engine.stats = stats


async def test_the_counters_as_json(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        found = (await client.get("/internal/capture")).json()
    assert (found["model"], found["degraded"]) == ("tiny", False)
    assert found["verdict"]["late_compilations"] == 0
    assert found["tick_fields"] == ["number", "bucket", "tokens", "rows", "seconds", "gap"]
    assert found["ticks"] == [[1, "decode 1", 1, 1, 0.5, None]]


async def test_a_late_compilation_degrades_health_and_is_counted(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        assert (await client.get("/health")).json()["degraded"] is False
        late(engine)
        health = await client.get("/health")
        metrics = (await client.get("/metrics")).text
    assert health.status_code == 200  # requests are still answered
    assert health.json()["degraded"] is True
    assert health.json()["late"] == {"late_compilations": 2}
    assert "\nhelios_degraded 1\n" in metrics
    assert "\nhelios_late_compilations_total 2\n" in metrics
    assert "\nhelios_ticks_total 7\n" in metrics


async def test_an_engine_that_is_not_there_is_an_error(engine: FakeEngine, text: ModelText) -> None:
    engine.state = "starting"
    async with client_of(app_for(engine, text)) as client:
        assert (await client.get("/internal/capture")).status_code == 503
        engine.state = "ready"

        async def capture(timeout: float) -> CaptureState:
            raise TimeoutError("no answer")

        engine.capture = capture
        answer = await client.get("/internal/capture")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stuck")


async def test_the_page_is_open_and_its_data_is_not(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text, api_key="secret")) as client:
        page = await client.get("/capture")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert (await client.get("/internal/capture")).status_code == 401
        allowed = await client.get("/internal/capture", headers={"Authorization": "Bearer secret"})
        assert allowed.status_code == 200


def test_the_page_needs_no_network() -> None:
    page = render_page()
    outside = [url for url in re.findall(r"""https?://[^"'\s]+""", page) if "www.w3.org" not in url]
    assert outside == []
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:)", page) == []
    assert "/*STYLE*/" not in page


def test_the_server_process_does_without_torch() -> None:
    program = "import sys, helios.server.run, helios.server.capture_page as c; c.render_page(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
