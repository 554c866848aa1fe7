"""`helios serve` as a user starts it: seconds until it is healthy, cold and warm, and a random load that must compile nothing.

    python -m benchmarks.serving --model Qwen/Qwen3-4B --load-format dummy --requests 400

Every other flag goes to `helios serve`. Writes reports/<device>-serving.json with the server's own account of
compilations after the load, in which streams, hang-ups and every sampling parameter are mixed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks import record

START_SECONDS = 300
DRAIN_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(flags: list[str], port: int, log: Any) -> tuple[subprocess.Popen, dict[str, float]]:
    """The process, and the seconds from its start until /live and /health answered 200. Raises RuntimeError."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "helios", "serve", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    seconds: dict[str, float] = {}
    while time.perf_counter() - began < START_SECONDS and process.poll() is None:
        for path in ("live", "health"):
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=5)
            except httpx.TransportError:
                continue
            if answer.status_code == 200:
                seconds.setdefault(path, round(time.perf_counter() - began, 2))
        if "health" in seconds:
            return process, seconds
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"the server was not healthy after {START_SECONDS} s; exit code {process.poll()}")


def stop(process: subprocess.Popen) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(DRAIN_SECONDS)


async def random_load(url: str, requests: int, concurrency: int, seed: int) -> dict[str, int]:
    """Sends chat requests of random shape; returns how many ended how."""
    draw = random.Random(seed)
    ends: dict[str, int] = {}
    places = asyncio.Semaphore(concurrency)
    bodies = [random_body(draw) for _ in range(requests)]
    hang_ups = [draw.random() < 0.1 for _ in range(requests)]
    async with httpx.AsyncClient(
        base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)
    ) as client:

        async def send(body: dict[str, Any], hang_up: bool) -> None:
            async with places:
                end = await one(client, body, hang_up)
            ends[end] = ends.get(end, 0) + 1

        await asyncio.gather(*(send(*pair) for pair in zip(bodies, hang_ups, strict=True)))
    return ends


async def one(client: httpx.AsyncClient, body: dict[str, Any], hang_up: bool) -> str:
    if not body["stream"]:
        answer = await client.post("/v1/chat/completions", json=body)
        return f"{answer.status_code} " + (
            answer.json()["choices"][0]["finish_reason"] if answer.status_code == 200 else answer.text[:80]
        )
    events = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            events += line.startswith("data:")
            if hang_up and events > 3:
                return "hung up"
    return f"{response.status_code} stream"


def random_body(draw: random.Random) -> dict[str, Any]:
    words = " ".join(
        draw.choice(("alpha", "beta", "gamma", "delta")) for _ in range(int(10 ** draw.uniform(0, 3.1)))
    )
    return {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": int(10 ** draw.uniform(0, 2.4)),
        "stream": draw.random() < 0.7,
        "ignore_eos": draw.random() < 0.5,
        "temperature": draw.choice((0, 0.6, 1.0, 1.5)),
        "top_p": draw.choice((1.0, 0.95, 0.5)),
        "top_k": draw.choice((0, 1, 20, 200)),
        "min_p": draw.choice((0.0, 0.05)),
        **({"seed": draw.randrange(1000)} if draw.random() < 0.5 else {}),
    }


def measure(flags: list[str], requests: int, concurrency: int) -> dict[str, Any]:
    """Cold start, warm start, then the load on the warm server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="helios-cache-") as folder, tempfile.TemporaryFile("w+") as log:
        try:
            for name in ("cold", "warm"):
                process, seconds = start([*flags, "--cache-dir", folder], port, log)
                results[name] = seconds
                if name == "cold":
                    results["cold"]["exit_code"] = stop(process)
            began = time.perf_counter()
            results["load"] = asyncio.run(random_load(url, requests, concurrency, seed=0))
            results["load_seconds"] = round(time.perf_counter() - began, 2)
            results["health"] = httpx.get(f"{url}/health", timeout=30).json()
            results["warm"]["exit_code"] = stop(process)
        except Exception:
            print(os.pread(log.fileno(), 2**20, 0).decode()[-6000:], file=sys.stderr)
            raise
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--out", type=Path, default=record.REPORTS / f"{record.device_name()}-serving.json")
    parser.add_argument("--commit", help="where the tree has no git")
    args, flags = parser.parse_known_args()
    results = measure(flags, args.requests, args.concurrency)
    capture = results["health"]["scheduler"]["capture"]
    passed = not any(capture.values()) and all(end.startswith(("200", "hung")) for end in results["load"])
    record.write(args.out, {"passed": passed, **results, "environment": record.environment(args.commit)})
    print({name: results[name] for name in ("cold", "warm", "load", "load_seconds")}, capture)
    print("passed" if passed else "FAILED", args.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
