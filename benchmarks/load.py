"""Load for a running server: many streamed chat completions at once, and how long their tokens take to arrive.

`python -m benchmarks.load --url http://127.0.0.1:8000 --concurrency 32 --num-requests 256 --input-len 512 --output-len 128`
works with any server that speaks OpenAI's API with usage in streams; it prints a table and, with --out, writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks import record

CHAT = "/v1/chat/completions"
# Short common words, which are one token each in most vocabularies.
WORDS = ["the", "a", "is", "of", "to", "in", "and", "that", "for", "it", "on", "with", "as", "are"]
PROBE_WORDS = (64, 256)


@dataclass(frozen=True)
class Job:
    """One request to send: words in its prompt, most tokens of its answer, seconds after the start when it is due."""

    words: int
    output_len: int
    due: float


@dataclass
class Sample:
    """What became of a request. Instants are seconds of perf_counter; arrivals: of each event that carried text."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def first_token(self) -> float:
        """Seconds from sending to the first text."""
        return self.arrivals[0] - self.sent

    @property
    def per_token(self) -> float | None:
        """Mean seconds between output tokens after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Wording:
    """How many words make a prompt of so many tokens, learned from the server's own counts."""

    fixed: float
    per_word: float

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))


class Client:
    """Sends chat requests to one server and times what comes back."""

    def __init__(self, http: httpx.AsyncClient, model: str, temperature: float, seed: int) -> None:
        self._http = http
        self._model = model
        self._temperature = temperature
        self._draw = random.Random(seed)

    async def complete(self, words: int, output_len: int) -> Sample:
        """Never raises for a server's refusal or a broken connection: that is then the sample's `error`."""
        body = self._body(words, output_len)
        sample = Sample(sent=time.perf_counter())
        try:
            async with self._http.stream("POST", CHAT, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    sample.error = f"status {response.status_code}: {text[:300]}"
                    return sample
                async for line in response.aiter_lines():
                    _take(sample, line)
        except httpx.HTTPError as error:
            sample.error = f"{type(error).__name__}: {error}"
        sample.ended = time.perf_counter()
        if sample.error is None and not (sample.arrivals and sample.output_tokens):
            sample.error = "the stream ended without text or without usage"
        return sample

    async def learn_wording(self) -> Wording:
        """Asks for one token after prompts of two lengths. Raises RuntimeError if the server answers with an error."""
        few, many = [await self.complete(words, 1) for words in PROBE_WORDS]
        for sample in (few, many):
            if not sample.prompt_tokens:
                raise RuntimeError(f"the server did not answer a first request: {sample.error}")
        per_word = (many.prompt_tokens - few.prompt_tokens) / (PROBE_WORDS[1] - PROBE_WORDS[0])
        return Wording(few.prompt_tokens - per_word * PROBE_WORDS[0], per_word)

    def _body(self, words: int, output_len: int) -> dict[str, Any]:
        """Random words, so that no prompt shares more than the template with another."""
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(self._draw.choices(WORDS, k=words))}],
            "max_tokens": output_len,
            "ignore_eos": True,
            "temperature": self._temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _take(sample: Sample, line: str) -> None:
    """Reads one line of the event stream into the sample."""
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    now = time.perf_counter()
    chunk = json.loads(data)
    if "error" in chunk:
        sample.error = str(chunk["error"])
    deltas = [choice["delta"] for choice in chunk.get("choices", ())]
    if any(delta.get("content") or delta.get("reasoning_content") for delta in deltas):
        sample.arrivals.append(now)
    if usage := chunk.get("usage"):
        sample.prompt_tokens = usage["prompt_tokens"]
        sample.output_tokens = usage["completion_tokens"]


async def run_jobs(client: Client, jobs: Sequence[Job], concurrency: int) -> tuple[list[Sample], float]:
    """Sends each job when it is due and a place is free. Returns samples in the order of jobs, and seconds in all."""
    places = asyncio.Semaphore(concurrency)
    began = time.perf_counter()

    async def run(job: Job) -> Sample:
        await asyncio.sleep(max(0.0, began + job.due - time.perf_counter()))
        async with places:
            return await client.complete(job.words, job.output_len)

    samples = await asyncio.gather(*(run(job) for job in jobs))
    return samples, time.perf_counter() - began


def make_jobs(lengths: Sequence[tuple[int, int]], wording: Wording, rate: float, seed: int) -> list[Job]:
    """rate: requests a second with random (Poisson) arrivals, inf for all at once. lengths: (input, output) tokens."""
    draw, due, jobs = random.Random(seed), 0.0, []
    for input_len, output_len in lengths:
        jobs.append(Job(wording.words_for(input_len), output_len, due))
        due += 0.0 if math.isinf(rate) else draw.expovariate(rate)
    return jobs


def read_pairs(file: Path) -> list[tuple[int, int]]:
    """(input, output) lengths in tokens of a JSON file: a list of pairs, or an object with them under "pairs"."""
    body = json.loads(file.read_text(encoding="utf-8"))
    pairs = body["pairs"] if isinstance(body, dict) else body
    return [(int(pair[0]), int(pair[1])) for pair in pairs]


def read_lengths(file: Path, count: int, seed: int) -> list[tuple[int, int]]:
    """`count` of the file's pairs, drawn at random."""
    return random.Random(seed).choices(read_pairs(file), k=count)


def summarise(samples: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """Rates, and spreads in seconds over the requests that succeeded."""
    good = [sample for sample in samples if sample.error is None]
    gaps = [np.diff(sample.arrivals) for sample in good if len(sample.arrivals) > 1]
    output_tokens = sum(sample.output_tokens for sample in good)
    return {
        "seconds": seconds,
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "errors": sorted({sample.error for sample in samples if sample.error is not None})[:5],
        "input_tokens": sum(sample.prompt_tokens for sample in good),
        "output_tokens": output_tokens,
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": output_tokens / seconds,
        "time_to_first_token": _spread([sample.first_token for sample in good]),
        "time_per_output_token": _spread([s.per_token for s in good if s.per_token is not None]),
        "time_between_events": _spread(np.concatenate(gaps) if gaps else []),
        "request": _spread([sample.ended - sample.sent for sample in good]),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return {
        "mean": float(np.mean(values)),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(np.max(values)),
    }


def print_table(summary: dict[str, Any]) -> None:
    print(
        f"{summary['requests'] - summary['failed']} requests in {summary['seconds']:.2f} s, {summary['failed']} failed"
    )
    for error in summary["errors"]:
        print(f"  {error}")
    print(
        f"{summary['input_tokens']:,} tokens in, {summary['output_tokens']:,} out: "
        f"{summary['output_tokens_per_second']:,.1f} output tokens/s, {summary['requests_per_second']:.2f} requests/s"
    )
    print(f"{'milliseconds':24}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p99", "max")))
    for name in ("time_to_first_token", "time_per_output_token", "time_between_events", "request"):
        if (spread := summary[name]) is not None:
            print(
                f"{name.replace('_', ' '):24}" + "".join(f"{1e3 * value:>10.2f}" for value in spread.values())
            )


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    limits = httpx.Limits(max_connections=args.concurrency, max_keepalive_connections=args.concurrency)
    async with httpx.AsyncClient(
        base_url=args.url, headers=headers, limits=limits, timeout=args.timeout
    ) as http:
        model = args.model or (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        client = Client(http, model, args.temperature, args.seed)
        wording = await client.learn_wording()
        if args.lengths is None:
            lengths = [(args.input_len, args.output_len)] * args.num_requests
        else:
            lengths = read_lengths(args.lengths, args.num_requests, args.seed)
        jobs = make_jobs(lengths, wording, args.rate, args.seed)
        samples, seconds = await run_jobs(client, jobs, args.concurrency)
    return {"model": model} | summarise(samples, seconds)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    add("--model", help="its name there; the server's first one if not given")
    add("--api-key", help="sent as a bearer token")
    add("--concurrency", type=int, default=32, help="most requests at once (default: %(default)s)")
    add("--num-requests", type=int, default=128, help="requests in all (default: %(default)s)")
    add(
        "--input-len",
        type=int,
        default=512,
        help="tokens of a prompt, template included (default: %(default)s)",
    )
    add("--output-len", type=int, default=128, help="tokens of an answer (default: %(default)s)")
    add(
        "--lengths",
        type=Path,
        help="a JSON file of [input, output] pairs to draw from, instead of the two above",
    )
    add(
        "--rate",
        type=float,
        default=math.inf,
        help="requests a second, randomly spaced (default: all at once)",
    )
    add("--temperature", type=float, default=0.6)
    add("--seed", type=int, default=0)
    add("--timeout", type=float, default=600.0, help="seconds of silence after which a request has failed")
    add("--out", type=Path, help="write the result here as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """1 if any request failed."""
    args = make_parser().parse_args(argv)
    result = asyncio.run(measure(args))
    print_table(result)
    if args.out is not None:
        settings = {name: value for name, value in vars(args).items() if name != "api_key"}
        record.write(args.out, {"environment": record.environment(), "settings": settings, **result})
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
