"""The engine on its device against Hugging Face transformers, on a cut of the model with random weights: is every id right?

    python -m benchmarks.parity --model Qwen/Qwen3-4B --layers 4

Writes reports/<device>-parity.json. The judge computes in float32. An id counts as right when the judge's logit for it
is within a stated gap of the judge's best one, which is what 16-bit arithmetic may swap; the judge's own 16-bit run is
measured beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.model.hub import resolve
from helios.model.model_config import ModelConfig
from helios.model.vocabulary import vocabulary_size
from helios.sampling import SamplingParams

GAP = 0.15  # nat
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGE_SIZE = 64
CHUNK = 512


def prompt_lengths() -> list[int]:
    """One token, both sides of every kind of edge (page, chunk), and a few that need several chunks."""
    edges = [1, 2, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * PAGE_SIZE]
    return [*edges, 7, 300, 1000, 1500, 2000]


def cut_checkpoint(source: Path, layers: int, folder: Path) -> Any:
    """Writes the source's architecture with `layers` layers and random weights; returns the transformers model, fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = layers
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.7, 1.3)
        else:
            weight.data.normal_(0, 0.02)
    model.save_pretrained(folder)
    shutil.copy(source / "tokenizer.json", folder)
    return model.eval()


def answers(core: EngineCore, prompts: list[list[int]], new_tokens: int, tag: str) -> list[list[int]]:
    """Greedy ids of every prompt, all in flight at once."""
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        refusal = core.add(AddRequest(f"{tag}{index}", prompt, params))
        if refusal is not None:
            raise RuntimeError(refusal.error)
    ids: dict[str, list[int]] = {}
    while core.has_work:
        for output in core.step():
            if output.error:
                raise RuntimeError(output.error)
            ids.setdefault(output.id, []).extend(output.ids)
    return [ids[f"{tag}{index}"] for index in range(len(prompts))]


@torch.no_grad()
def gaps(judge: Any, rounded: Any, prompt: list[int], answer: list[int]) -> tuple[list[float], list[float]]:
    """For each new id the judge's best logit minus its logit of the id; and the same for the 16-bit judge's choice."""
    tokens = torch.tensor([prompt + answer], device=DEVICE)
    logits = judge(tokens).logits[0, len(prompt) - 1 : -1].float()
    picked = torch.tensor(answer, device=DEVICE)[:, None]
    other = rounded(tokens).logits[0, len(prompt) - 1 : -1].argmax(1)[:, None]
    best = logits.amax(1, keepdim=True)
    return (best - logits.gather(1, picked))[:, 0].tolist(), (best - logits.gather(1, other))[:, 0].tolist()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", required=True, help="folder or hub name; only its config and tokenizer are used"
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--out", type=Path, default=record.REPORTS / f"{record.device_name()}-parity.json")
    parser.add_argument("--commit", help="where the tree has no git")
    args = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounded = cut_checkpoint(resolve(args.model, weights=False).path, args.layers, folder)
        judge = type(rounded).from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
        vocab = vocabulary_size(folder, ModelConfig.from_folder(folder))
        prompts = [[draw.randrange(vocab) for _ in range(length)] for length in prompt_lengths()]
        core = EngineCore(
            EngineConfig(
                model=str(folder),
                max_model_len=4096,
                page_size=PAGE_SIZE,
                max_num_seqs=32,
                max_num_batched_tokens=CHUNK,
                strict_capture=True,
                gpu_memory_utilization=0.6,
            )
        )
        runs = {
            "batched and chunked": answers(core, prompts, args.new_tokens, "cold"),
            "prefix hits": answers(core, prompts, args.new_tokens, "warm"),
        }
        alone = [
            answers(core, [prompt], args.new_tokens, f"alone{i}-")[0] for i, prompt in enumerate(prompts)
        ]
        runs["alone"] = alone
        results: dict[str, Any] = {}
        for run, ids in runs.items():
            ours, theirs = [], []
            for prompt, answer in zip(prompts, ids, strict=True):
                own, other = gaps(judge, rounded, prompt, answer)
                ours += own
                theirs += other
            results[run] = {
                "ids": len(ours),
                "unlike_the_judge": sum(gap > 0 for gap in ours),
                "worst_gap": max(ours),
                "judge_in_bfloat16_unlike_itself": sum(gap > 0 for gap in theirs),
                "judge_in_bfloat16_worst_gap": max(theirs),
            }
        stats = core.stats()
    passed = all(result["worst_gap"] <= GAP for result in results.values())
    record.write(
        args.out,
        {
            "passed": passed,
            "tolerance": f"gap <= {GAP} nat",
            "prompt_lengths": prompt_lengths(),
            "runs": results,
            "capture": stats.capture,
            "environment": record.environment(args.commit),
        },
    )
    for run, result in results.items():
        print(run, result)
    print("passed" if passed else "FAILED", stats.capture.found(), args.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
