"""Trains the tiny model and its draft on the generated corpus, in minutes on one GPU.

The schedule follows the clock (or a count of steps), so a run always ends fully annealed; weights, the log with
the scores by skill and a plot are written to one folder, which `helios.tiny.training.install` turns into the package data.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from helios.tiny.corpus import PROMPT, ROW_TOKENS, TARGET
from helios.tiny.judge import Record, read_records, scores_by_skill
from helios.tiny.skills import SKILLS
from helios.tiny.training.answering import answer_all
from helios.tiny.training.feed import Batch, Feed
from helios.tiny.training.folder import DRAFT, TINY, TinyShape
from helios.tiny.training.masks import choose_masks
from helios.tiny.training.muon import Muon
from helios.tiny.training.network import Mask, TinyQwen3
from helios.tiny.training.probe import Probe

TOKENIZER_FILE = Path(__file__).parents[1] / "model" / "tokenizer.json"
PROBE_EVERY = 500


@dataclass(frozen=True)
class Recipe:
    """What a run is made of; the log repeats it. Minutes count the whole run, its start and compilation included."""

    minutes: float
    draft_minutes: float
    evaluation_minutes: float
    steps: int | None
    draft_steps: int | None
    rows: int
    seed: int
    matrix_lr: float = 0.02
    vector_lr: float = 0.004
    weight_decay: float = 0.02
    warmup: float = 0.02
    decay_from: float = 0.45
    prompt_weight: float = 0.1
    prompt_until: float = 0.5


@dataclass
class Log:
    """Everything a report needs, kept as plain data and written after every phase."""

    recipe: dict[str, Any]
    device: str
    torch: str
    phases: dict[str, float] = field(default_factory=dict)
    steps: dict[str, list[list[float]]] = field(default_factory=dict)
    probes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    shards_waited_for: int = 0

    def write(self, folder: Path) -> None:
        """Writes training.json."""
        (folder / "training.json").write_text(
            json.dumps(asdict(self), ensure_ascii=False) + "\n", encoding="utf-8"
        )


@dataclass(frozen=True)
class Schedule:
    """Progress from 0 to 1, by steps if their number is given and by the clock otherwise."""

    steps: int | None
    start: float
    end: float

    def progress(self, step: int) -> float:
        """How much of the training is behind us before `step`."""
        if self.steps is not None:
            return step / self.steps
        return (time.monotonic() - self.start) / max(1e-9, self.end - self.start)


def learning_rate(progress: float, recipe: Recipe) -> float:
    """The factor on the peak rate: warm-up, plateau, then linearly to zero."""
    rising = min(1.0, (progress + 1e-3) / recipe.warmup)
    falling = min(1.0, (1.0 - progress) / (1.0 - recipe.decay_from))
    return max(0.0, min(rising, falling))


def batch_loss(
    model: TinyQwen3,
    ids: Tensor,
    positions: Tensor,
    mask: Mask,
    labels: Tensor,
    kinds: Tensor,
    prompt_weight: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Weighted mean cross entropy of the next tokens, and the mean of those in answers alone (without gradient)."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model.logits(model(ids, positions, mask, dtype))
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(
        labels
    )
    answers, prompts = (kinds == TARGET).float(), (kinds == PROMPT).float()
    weights = answers + prompt_weight * prompts
    return (losses * weights).sum() / weights.sum(), (losses.detach() * answers).sum() / answers.sum()


class Trainer:
    """Trains one network on batches until its schedule ends."""

    def __init__(self, name: str, shape: TinyShape, recipe: Recipe, device: torch.device, log: Log) -> None:
        self.name, self.recipe, self.device, self.log = name, recipe, device, log
        self.model = TinyQwen3(shape).to(device)
        self.model.initialise(recipe.seed)
        parameters = dict(self.model.named_parameters())
        matrices = [p for key, p in parameters.items() if p.dim() == 2 and "embed" not in key]
        vectors = [p for key, p in parameters.items() if p.dim() < 2 or "embed" in key]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay),
            torch.optim.AdamW(
                vectors, lr=recipe.vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda"
            ),
        ]
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.loss = torch.compile(batch_loss, dynamic=False) if device.type == "cuda" else batch_loss

    def losses(self, batch: Batch, mask: Mask, prompt_weight: Tensor) -> tuple[Tensor, Tensor]:
        """`batch_loss` of a batch."""
        return self.loss(
            self.model,
            batch.ids,
            batch.positions,
            mask,
            batch.labels,
            batch.kinds,
            prompt_weight,
            self.dtype,
        )

    def step(self, batch: Batch, mask: Mask, progress: float) -> Tensor:
        """One update; returns the loss on the answers, still on the device."""
        recipe = self.recipe
        share = max(0.0, 1.0 - progress / recipe.prompt_until)
        prompt_weight = torch.full((), recipe.prompt_weight * share, device=self.device)
        loss, answer_loss = self.losses(batch, mask, prompt_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = learning_rate(progress, recipe)
        for optimizer, peak in zip(self.optimizers, (recipe.matrix_lr, recipe.vector_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return answer_loss

    def run(
        self,
        batches: Iterator[Batch],
        masks: Callable[[Tensor], Mask],
        schedule: Schedule,
        probe: Probe,
        out: Path,
    ) -> None:
        """Trains to the end of the schedule, with a log line and a copy of the weights now and then."""
        steps, probes = self.log.steps.setdefault(self.name, []), self.log.probes.setdefault(self.name, [])
        step, tokens, saved = 0, 0, 0.0
        began = time.monotonic()
        while (progress := schedule.progress(step)) < 1.0:
            batch = next(batches)
            answer_loss = self.step(batch, masks(batch.documents), progress)
            tokens += batch.tokens
            step += 1
            if step == 1 or step % 20 == 0:
                seconds, loss = time.monotonic() - began, float(answer_loss)
                if not math.isfinite(loss):
                    raise RuntimeError(
                        f"the loss of {self.name} is {loss} at step {step}; lower the learning rate"
                    )
                steps.append([step, tokens, round(seconds, 2), round(progress, 4), round(loss, 5)])
            if step == 100 or step % PROBE_EVERY == 0:
                probes.append({"step": step, "right": probe.score(self.model)})
                least = min(probes[-1]["right"].items(), key=lambda item: item[1])
                print(
                    f"{self.name} step {step} progress {progress:.3f} loss {steps[-1][-1]:.4f} "
                    f"{tokens / (time.monotonic() - began) / 1e6:.3f} Mtok/s weakest {least}",
                    flush=True,
                )
            if progress - saved > 0.2:
                saved = progress
                self.save(out)
        probes.append({"step": step, "right": probe.score(self.model)})
        self.log.phases[f"{self.name}_seconds"] = round(time.monotonic() - began, 2)
        self.log.phases[f"{self.name}_steps"] = step
        self.log.phases[f"{self.name}_tokens"] = tokens
        print(
            f"{self.name} done after {step} steps, {tokens / 1e6:.1f} M tokens: {probes[-1]['right']}",
            flush=True,
        )
        self.save(out)
        self.log.write(out)

    def save(self, out: Path) -> None:
        """Writes <name>.safetensors in bf16."""
        weights = {key: value.to(torch.bfloat16).cpu() for key, value in self.model.state_dict().items()}
        save_file(weights, str(out / f"{self.name}.safetensors"), metadata={"format": "pt"})

    def load(self, file: Path) -> None:
        """Starts from weights that `save` wrote."""
        self.model.load_state_dict(load_file(str(file)))


def evaluate(
    trainer: Trainer, tokenizer: Tokenizer, records: list[Record], until: float, batch_tokens: int
) -> None:
    """Greedy answers to the records by the weights as exported; stops between skills once time is up."""
    for weight in trainer.model.parameters():
        weight.data = weight.data.to(torch.bfloat16).float()
    for skill in SKILLS:
        if time.monotonic() > until:
            print(f"no time left to evaluate {skill} and what follows", flush=True)
            return
        asked = [record for record in records if record["skill"] == skill]
        answers = answer_all(trainer.model, tokenizer, asked, batch_tokens=batch_tokens)
        score = scores_by_skill(asked, answers)[skill]
        trainer.log.scores.setdefault(trainer.name, {})[skill] = asdict(score)
        trainer.log.answers += [
            {"model": trainer.name, "id": record["id"], "answer": answer}
            for record, answer in zip(asked, answers, strict=True)
        ]
        print(
            f"{trainer.name} {skill}: {score.right} of {score.total}, well formed {score.well_formed}",
            flush=True,
        )


def plot(log: Log, file: Path) -> None:
    """Loss and held-out accuracy over tokens, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", flush=True)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for name, rows in log.steps.items():
        left.plot([row[1] / 1e6 for row in rows], [row[4] for row in rows], label=name, linewidth=1)
    left.set(xlabel="million tokens", ylabel="loss on answers", yscale="log", title="Training loss")
    left.legend()
    probes = log.probes["model"]
    for skill in SKILLS:
        right.plot(
            [p["step"] for p in probes], [100 * p["right"][skill] for p in probes], label=skill, linewidth=1
        )
    right.set(xlabel="step", ylabel="% answered token for token", title="Held-out questions")
    right.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def train(
    recipe: Recipe, out: Path, held_out: Path | None, start_from: Path | None, device: torch.device
) -> Log:
    """The whole run. Writes model.safetensors, draft.safetensors, training.json and training.png into `out`."""
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    with Feed(TOKENIZER_FILE, recipe.seed, recipe.rows) as feed:
        cuda = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if cuda else "CPU"
        log = Log(asdict(recipe), name, torch.__version__)
        torch.set_float32_matmul_precision("high")
        probe = Probe.make(tokenizer)
        attention, masks = choose_masks(recipe.rows, device)
        log.recipe["attention"] = attention
        print(
            f"{name}, torch {torch.__version__}, attention {attention}, {time.monotonic() - start:.1f} s",
            flush=True,
        )

        def waited(had_to: bool) -> None:
            log.shards_waited_for += had_to

        batches = feed.batches(device, waited)
        end = start + 60 * (recipe.minutes - recipe.draft_minutes - recipe.evaluation_minutes)
        trainers = []
        for kind, shape, steps in (("model", TINY, recipe.steps), ("draft", DRAFT, recipe.draft_steps)):
            trainer = Trainer(kind, shape, recipe, device, log)
            if start_from is not None:
                trainer.load(start_from / f"{kind}.safetensors")
            warm_up(trainer, next(batches), masks)
            log.phases[f"{kind}_ready_at"] = round(time.monotonic() - start, 2)
            trainer.run(batches, masks, Schedule(steps, time.monotonic(), end), probe, out)
            trainers.append(trainer)
            end = start + 60 * (recipe.minutes - recipe.evaluation_minutes)
    records = read_records(held_out) if held_out is not None else []
    until = start + 60 * recipe.minutes
    if records:
        evaluate(trainers[0], tokenizer, records, until, batch_tokens=131_072 if cuda else 8_192)
    log.phases["total_seconds"] = round(time.monotonic() - start, 2)
    log.write(out)
    plot(log, out / "training.png")
    return log


def warm_up(trainer: Trainer, batch: Batch, masks: Callable[[Tensor], Mask]) -> None:
    """Compiles the step before its clock starts, and leaves weights and optimizers untouched."""
    weight = torch.tensor(0.1, device=trainer.device)
    loss, _ = trainer.losses(batch, masks(batch.documents), weight)
    loss.backward()
    trainer.model.zero_grad(set_to_none=True)
    if not bool(torch.isfinite(loss)):
        raise RuntimeError(f"the first loss of {trainer.name} is {float(loss)}; it must be finite")


def main() -> None:
    """Command line of the run."""
    parser = argparse.ArgumentParser(prog="python -m helios.tiny.training.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log and plot")
    parser.add_argument("--minutes", type=float, default=8.0, help="the whole run, evaluation included")
    parser.add_argument("--draft-minutes", type=float, default=1.2)
    parser.add_argument("--evaluation-minutes", type=float, default=0.6)
    parser.add_argument(
        "--steps", type=int, help="end the model's training after so many steps, not by the clock"
    )
    parser.add_argument("--draft-steps", type=int, help="the same for the draft")
    parser.add_argument("--rows", type=int, default=32, help=f"rows of {ROW_TOKENS} tokens in a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", type=Path, help="folder of held-out questions to answer at the end")
    parser.add_argument(
        "--start-from", type=Path, help="folder of an earlier run whose weights to go on from"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--matrix-lr", type=float, default=Recipe.matrix_lr)
    parser.add_argument("--vector-lr", type=float, default=Recipe.vector_lr)
    a = parser.parse_args()
    recipe = Recipe(
        minutes=a.minutes,
        draft_minutes=a.draft_minutes,
        evaluation_minutes=a.evaluation_minutes,
        steps=a.steps,
        draft_steps=a.draft_steps,
        rows=a.rows,
        seed=a.seed,
        matrix_lr=a.matrix_lr,
        vector_lr=a.vector_lr,
    )
    train(recipe, a.out, a.held_out, a.start_from, torch.device(a.device))


if __name__ == "__main__":
    main()
