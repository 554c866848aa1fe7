"""One engine measured offline, ids in and ids out: start-up, throughput, the decode step, prefill and the first token.

    python -m benchmarks.offline --model Qwen/Qwen3-4B --load-format dummy --workload peers

writes reports/<device>-offline.json after every part, so that a run that is cut short keeps what it has. Takes every
engine flag of `helios bench`; the prefix cache is off unless asked for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks import record
from benchmarks.load import read_lengths
from benchmarks.startup import cold_and_warm
from helios.commands.bench import HIGHEST_ID, Lengths, workload
from helios.commands.common import CommandParser, add_engine_flags, given_engine_flags
from helios.config import ConfigError, EngineConfig
from helios.engine.messages import Progress
from helios.llm import LLM
from helios.sampling import SamplingParams

TEMPERATURE = 0.6
PARTS = ("startup", "first-token", "decode", "prefill", "workload")


@dataclass(frozen=True)
class Batch:
    """So many prompts of so many tokens, written "16x4096"."""

    prompts: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ArgumentTypeError."""
        prompts, _, tokens = text.partition("x")
        if not (prompts.isdecimal() and tokens.isdecimal() and int(prompts) and int(tokens)):
            raise argparse.ArgumentTypeError(f"must be PROMPTSxTOKENS such as 16x4096, got {text!r}")
        return cls(int(prompts), int(tokens))

    def __str__(self) -> str:
        return f"{self.prompts}x{self.tokens}"


class Bench:
    """Runs prompts of random ids on one LLM. Every answer has exactly the tokens asked for."""

    def __init__(self, llm: LLM, repeats: int) -> None:
        self.llm = llm
        self.repeats = repeats
        self._draw = random.Random(1)
        self._highest = min(HIGHEST_ID, llm.tokenizer.vocab_size - 1)

    def generate(self, prompts: Sequence[list[int]], output_lens: Sequence[int]) -> float:
        """Seconds. Raises RuntimeError if an answer is not as long as it should be."""
        params = [
            SamplingParams(temperature=TEMPERATURE, max_tokens=length, ignore_eos=True)
            for length in output_lens
        ]
        began = time.perf_counter()
        completions = self.llm.generate(prompts, params, detokenize=False)
        seconds = time.perf_counter() - began
        for completion, length in zip(completions, output_lens, strict=True):
            if len(completion.ids) != length:
                raise RuntimeError(
                    f"an answer has {len(completion.ids)} tokens instead of {length}: "
                    f"{completion.error or completion.finish_reason}"
                )
        return seconds

    def times(self, batch: Batch, output_len: int, repeats: int | None = None) -> list[float]:
        """Seconds of each repeat, every one with new prompts."""
        return [
            self.generate(
                [self._prompt(batch.tokens) for _ in range(batch.prompts)], [output_len] * batch.prompts
            )
            for _ in range(repeats or self.repeats)
        ]

    def too_long(self, tokens: int) -> bool:
        return tokens > self.llm.info.max_model_len

    def _prompt(self, tokens: int) -> list[int]:
        return [self._draw.randint(0, self._highest) for _ in range(tokens)]


def decode_step(bench: Bench, batch: Batch, output_len: int) -> dict[str, Any]:
    """Seconds a step: (time of output_len tokens - time of 1) / (output_len - 1), which leaves the prefill out."""
    short, long = (statistics.median(bench.times(batch, length)) for length in (1, output_len))
    step = (long - short) / (output_len - 1)
    return {
        "requests": batch.prompts,
        "input": batch.tokens,
        "mean_context": batch.tokens + output_len // 2,
        "step_seconds": step,
        "output_tokens_per_second": batch.prompts / step,
        "seconds_of_1": short,
        f"seconds_of_{output_len}": long,
    }


def prefill(bench: Bench, batch: Batch) -> dict[str, Any]:
    times = bench.times(batch, 1)
    tokens = batch.prompts * batch.tokens
    seconds = statistics.median(times)
    return {
        "requests": batch.prompts,
        "input": batch.tokens,
        "seconds": seconds,
        "input_tokens_per_second": tokens / seconds,
        "times": times,
    }


def throughput(bench: Bench, prompts: list[list[int]], output_lens: list[int]) -> dict[str, Any]:
    times = [bench.generate(prompts, output_lens) for _ in range(bench.repeats)]
    seconds = statistics.median(times)
    return {
        "requests": len(prompts),
        "input_tokens": sum(map(len, prompts)),
        "output_tokens": sum(output_lens),
        "seconds": seconds,
        "output_tokens_per_second": sum(output_lens) / seconds,
        "times": times,
    }


def make_workload(args: argparse.Namespace, vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """Prompts and output lengths: "peers" draws both evenly from one range, a file of pairs is drawn from."""
    if args.workload == "peers":
        return workload(0, args.requests, args.lengths, args.lengths, vocab_size)
    pairs = read_lengths(Path(args.workload), args.requests, seed=0)
    draw, highest = random.Random(0), min(HIGHEST_ID, vocab_size - 1)
    return [[draw.randint(0, highest) for _ in range(length)] for length, _ in pairs], [
        out for _, out in pairs
    ]


def run(
    args: argparse.Namespace, config: EngineConfig, fields: dict[str, Any], keep: Callable[..., None]
) -> None:
    """keep: takes results by name as they come."""
    if "startup" in args.parts:
        keep(startup=cold_and_warm(config))  # before this process takes the GPU's memory
    if args.parts == ["startup"]:
        return
    with LLM(on_progress=_show, **fields) as llm:
        keep(engine=llm.info)
        bench = Bench(llm, args.repeats)
        bench.times(Batch(2, 16), 4)  # the first ticks of a process are slower than any later one
        if "first-token" in args.parts:
            times = bench.times(Batch(1, args.first_token_input), 1, repeats=5 * args.repeats)
            keep(
                first_token={
                    "input": args.first_token_input,
                    "seconds": statistics.median(times),
                    "times": times,
                }
            )
        if "decode" in args.parts:
            keep(
                decode=[
                    decode_step(bench, batch, args.decode_output)
                    for batch in args.decode
                    if not bench.too_long(batch.tokens + args.decode_output)
                ]
            )
        if "prefill" in args.parts:
            keep(
                prefill=[
                    prefill(bench, batch) for batch in args.prefill if not bench.too_long(batch.tokens + 1)
                ]
            )
        if "workload" in args.parts:
            prompts, output_lens = make_workload(args, llm.tokenizer.vocab_size)
            keep(workload={"name": args.workload} | throughput(bench, prompts, output_lens))
        keep(stats=llm.stats())


def print_results(results: dict[str, Any]) -> None:
    for name, start in results.get("startup", {}).items():
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in start["phases"].items())
        print(f"start, {name}: ready after {start['ready']:.1f} s (import {start['import']:.1f}, {phases})")
    if first := results.get("first_token"):
        print(f"first token, {first['input']} in: {first['seconds'] * 1e3:.2f} ms")
    for each in results.get("decode", ()):
        print(
            f"decode, {each['requests']} requests at context {each['mean_context']}: {each['step_seconds'] * 1e3:.3f} ms "
            f"a step, {each['output_tokens_per_second']:,.0f} tokens/s"
        )
    for each in results.get("prefill", ()):
        print(
            f"prefill, {each['requests']} of {each['input']}: {each['input_tokens_per_second']:,.0f} tokens/s"
        )
    if whole := results.get("workload"):
        print(
            f"{whole['name']}: {whole['requests']} requests, {whole['input_tokens']:,} tokens in, "
            f"{whole['output_tokens']:,} out in {whole['seconds']:.2f} s: "
            f"{whole['output_tokens_per_second']:,.0f} output tokens/s"
        )
    if stats := results.get("stats"):
        print(
            f"padding waste {stats.padding_waste:.1%}; after the seal: {stats.capture.found() or 'nothing'}"
        )


def _show(progress: Progress) -> None:
    if progress.seconds is not None:
        print(f"{progress.phase} {progress.seconds:.1f} s", flush=True)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m benchmarks.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--parts", type=_parts, default=list(PARTS), help=f"of {','.join(PARTS)} (default: all)")
    add(
        "--workload",
        default="peers",
        help="peers, or a JSON file of [input, output] lengths (default: peers)",
    )
    add("--requests", type=int, default=256, help="of the workload (default: 256)")
    add("--lengths", type=Lengths.parse, default=Lengths(100, 1024), help="of peers (default: 100-1024)")
    add(
        "--decode",
        type=_batches,
        default=_batches("1x128,8x128,32x128,128x128,256x128"),
        metavar="NxTOKENS,...",
    )
    add("--decode-output", type=int, default=256, help="tokens (default: 256)")
    add("--prefill", type=_batches, default=_batches("1x2048,1x8192,16x4096"), metavar="NxTOKENS,...")
    add("--first-token-input", type=int, default=128, help="tokens (default: 128)")
    add("--repeats", type=int, default=3, help="of each measurement, whose median counts (default: 3)")
    add("--commit", help="to record where the tree has no git")
    add("--out", type=Path, help="default: reports/<device>-offline.json")
    add_engine_flags(parser)
    return parser


def _batches(text: str) -> list[Batch]:
    return [Batch.parse(part) for part in text.split(",")]


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"holds {unknown[0]!r}, which is not one of {', '.join(PARTS)}")
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    fields = {"enable_prefix_caching": False} | given_engine_flags(args)
    try:
        config = EngineConfig.from_env(**fields)
    except ConfigError as error:
        parser.error(str(error))
    out = args.out or record.REPORTS / f"{record.device_name()}-offline.json"
    if (warning := record.busy_warning()) is not None:
        print(warning)
    results: dict[str, Any] = {"environment": record.environment(args.commit), "config": asdict(config)}

    def keep(**parts: Any) -> None:
        results.update(parts)
        record.write(out, results)
        print_results(parts)

    run(args, config, fields, keep)
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
