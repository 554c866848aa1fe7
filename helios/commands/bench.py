"""helios bench: how many tokens a second the engine makes offline, ids in and ids out."""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from helios.commands.common import add_engine_flags, command_parser, loaded_model, write_result
from helios.config import ConfigError
from helios.sampling import SamplingParams

if TYPE_CHECKING:
    from helios.completion import Completion
    from helios.llm import LLM

HIGHEST_ID = 10_000  # of the random prompts, where the vocabulary reaches that far

EXAMPLES = """\
  helios bench
      32 requests of 128 tokens in and 128 out, on the bundled tiny model
  helios bench --model Qwen/Qwen3-4B --load-format dummy --num-prompts 256 --input-len 100-1024 --output-len 100-1024
      lengths drawn evenly from a range; random weights are as fast as real ones
  helios bench --json result.json --enforce-eager
      keep the numbers with the configuration that made them
"""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A length, or a range to draw from with both ends in it."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """ "128" or "100-1024". Raises ArgumentTypeError."""
        low, _, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high or low))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be a length such as 128 or a range such as 100-1024, got {text!r}"
            ) from None
        if not 1 <= lengths.low <= lengths.high:
            raise argparse.ArgumentTypeError(f"must be at least 1 and in ascending order, got {text!r}")
        return lengths

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def draw(self, source: random.Random) -> int:
        return source.randint(self.low, self.high)


def add_parser(subparsers: Any) -> None:
    parser = command_parser(subparsers, "bench", "measure offline throughput with random token ids", EXAMPLES)
    add = parser.add_argument
    add(
        "--num-prompts",
        type=int,
        default=32,
        metavar="N",
        help="how many requests, all at once (default: 32)",
    )
    add_lengths = partial(add, type=Lengths.parse, default=Lengths(128, 128), metavar="N or LOW-HIGH")
    add_lengths("--input-len", help="tokens of a prompt (default: 128)")
    add_lengths("--output-len", help="tokens of an answer, never fewer (default: 128)")
    add("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    add("--json", type=Path, metavar="FILE", help="write the result here too")
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.num_prompts < 1:
        raise ConfigError(f"--num-prompts must be at least 1, got {args.num_prompts}")
    if args.json is not None and not args.json.parent.is_dir():
        raise ConfigError(f"--json {args.json} cannot be written: {args.json.parent} is not a folder")
    with loaded_model(args) as llm:
        result = measure(llm, args.num_prompts, args.input_len, args.output_len, args.temperature)
    for name in ("output_tokens_per_second", "total_tokens_per_second", "requests_per_second"):
        print(f"{name.replace('_', ' '):28}{result[name]:12,.1f}")
    for name in ("seconds", "time_to_first_token_median", "time_per_output_token_median"):
        print(f"{name.replace('_', ' '):28}{result[name]:12.4f}")
    if args.json is not None:
        write_result(args.json, result)
    return 0


def measure(llm: LLM, count: int, inputs: Lengths, outputs: Lengths, temperature: float) -> dict[str, Any]:
    """Run the workload that llm.config.seed gives, and return numbers and what made them (times in seconds).

    Raises ConfigError if its longest request would not fit the context.
    """
    longest, limit = inputs.high + outputs.high, llm.info.max_model_len
    if longest > limit:
        raise ConfigError(
            f"--input-len {inputs} and --output-len {outputs} need a context of {longest}, this model has {limit}"
        )
    prompts, lengths = workload(llm.config.seed, count, inputs, outputs, llm.tokenizer.vocab_size)
    params = [
        SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True) for length in lengths
    ]
    began = time.perf_counter()
    results = llm.generate(prompts, params, detokenize=False, progress=True)
    seconds = time.perf_counter() - began
    return summarise(results, seconds) | {
        "num_prompts": count,
        "input_len": str(inputs),
        "output_len": str(outputs),
        "temperature": temperature,
        "info": msgspec.to_builtins(llm.info),
        "config": dataclasses.asdict(llm.config),
        "environment": _environment(),
    }


def workload(
    seed: int, count: int, inputs: Lengths, outputs: Lengths, vocab_size: int
) -> tuple[list[list[int]], list[int]]:
    """Random prompts (ids) and output lengths; the same seed gives the same ones."""
    source = random.Random(seed)
    highest = min(HIGHEST_ID, vocab_size - 1)
    prompts = [[source.randint(0, highest) for _ in range(inputs.draw(source))] for _ in range(count)]
    return prompts, [outputs.draw(source) for _ in range(count)]


def summarise(results: list[Completion], seconds: float) -> dict[str, Any]:
    made = sum(len(result.ids) for result in results)
    read = sum(len(result.prompt_ids) for result in results)
    timings = [result.timings for result in results]
    steps = [
        each.decode_wall / (len(result.ids) - 1)
        for each, result in zip(timings, results, strict=True)
        if len(result.ids) > 1
    ]
    return {
        "seconds": seconds,
        "input_tokens": read,
        "output_tokens": made,
        "output_tokens_per_second": made / seconds,
        "total_tokens_per_second": (made + read) / seconds,
        "requests_per_second": len(results) / seconds,
        "time_to_first_token_median": statistics.median(each.time_to_first_token for each in timings),
        "time_per_output_token_median": statistics.median(steps) if steps else 0.0,
    }


def _environment() -> dict[str, str | None]:
    import platform

    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": platform.platform(),
    }
