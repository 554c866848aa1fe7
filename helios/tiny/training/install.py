"""Turns the output of a training run into the packaged folders helios/tiny/model and helios/tiny/draft.

Only weights travel from the machine that trained; configuration and tokenizer come from the code and the folder
that the run started from, and the training log goes where the reports are kept.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file
from tokenizers import Tokenizer

from helios.tiny.training.folder import DRAFT, TINY, write_folder
from helios.tiny.training.prepare import MODEL_FOLDER


def install(run: Path, package: Path, reports: Path | None) -> None:
    """Writes both folders under `package` from the weights in `run`, and copies its log and plot to `reports`."""
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    for name, shape in (("model", TINY), ("draft", DRAFT)):
        write_folder(package / name, shape, load_file(str(run / f"{name}.safetensors")), tokenizer)
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        for name in ("training.json", "training.png"):
            shutil.copyfile(run / name, reports / f"tiny-{name}")


def main() -> None:
    """Command line: `python -m helios.tiny.training.install RUN [--reports FOLDER]`."""
    parser = argparse.ArgumentParser(prog="python -m helios.tiny.training.install", description=__doc__)
    parser.add_argument("run", type=Path, help="folder that helios.tiny.training.train wrote")
    parser.add_argument("--reports", type=Path, help="folder for the training log and plot")
    arguments = parser.parse_args()
    install(arguments.run, MODEL_FOLDER.parent, arguments.reports)


if __name__ == "__main__":
    main()
