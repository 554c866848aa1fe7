"""Makes what training starts from: the tokenizer in helios/tiny/model, and the held-out questions of the tests.

Both depend on the corpus alone. A new tokenizer makes trained weights useless, so the folder gets random ones.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from helios.tiny.corpus import draw_chat
from helios.tiny.judge import HELD_OUT_SEED, held_out_records
from helios.tiny.skills import SKILLS
from helios.tiny.tokens import SPECIAL_TOKENS, TAG_TOKENS, dump_json, train_tokenizer
from helios.tiny.training.folder import TINY, random_weights, write_folder

MODEL_FOLDER = Path(__file__).parents[1] / "model"
_TOKENIZER_CHATS = 60_000


def tokenizer_texts(seed: int) -> Iterator[str]:
    """The corpus cut at its special tokens, which the tokenizer must not learn as text."""
    marks = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + TAG_TOKENS)))
    rng = Random(f"tokenizer/{seed}")
    for _ in range(_TOKENIZER_CHATS):
        chat = draw_chat(rng, held_out=False)
        yield from filter(None, marks.split(chat.prompt() + chat.question.target(chat.thinking)))


def write_model_folder(folder: Path, seed: int) -> None:
    """A complete folder with a new tokenizer and seeded random weights."""
    write_folder(folder, TINY, random_weights(TINY, seed), train_tokenizer(tokenizer_texts(seed)))


def write_held_out(folder: Path, seed: int) -> None:
    """One .jsonl file a skill."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, skill in SKILLS.items():
        lines = [dump_json(record) for record in held_out_records(name, skill.held_out, seed)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Command line: `python -m helios.tiny.training.prepare model [--to FOLDER]` or `... heldout --to FOLDER`."""
    parser = argparse.ArgumentParser(prog="python -m helios.tiny.training.prepare", description=main.__doc__)
    parser.add_argument("what", choices=("model", "heldout"))
    parser.add_argument("--to", type=Path, help="folder to write; for 'model' the packaged one unless given")
    arguments = parser.parse_args()
    if arguments.what == "model":
        write_model_folder(arguments.to or MODEL_FOLDER, seed=0)
    elif arguments.to is None:
        parser.error("'heldout' needs --to FOLDER, for example tests/tiny/heldout")
    else:
        write_held_out(arguments.to, HELD_OUT_SEED)


if __name__ == "__main__":
    main()
