"""Downloads with the real client, each in a fresh process, from a hub on the loopback that misbehaves as hubs do."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from helpers.fake_hub import FakeHub
from helpers.user import user_environment

OLD, NEW = "0" * 40, "1" * 40
FILES = ("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json")
STRAYS = ("README.md", "pytorch_model.bin", "original/consolidated.safetensors", "onnx/config.json")
NO_HUB = "http://127.0.0.1:9"

RESOLVE = """
import hashlib, json, sys
from helios.model.hub import ModelNotFoundError, resolve
try:
    files = resolve("acme/model", **json.loads(sys.argv[1]))
except ModelNotFoundError as error:
    sys.exit(str(error))
found = {path.relative_to(files.path).as_posix(): path for path in files.path.rglob("*") if path.is_file()}
digests = {name: hashlib.sha1(path.read_bytes()).hexdigest() for name, path in found.items()}
print(json.dumps({"revision": files.revision, "files": digests}))
"""


def command(**arguments: object) -> list[str]:
    """resolve("acme/model", **arguments) in a process of its own, which prints what it got."""
    return [sys.executable, "-c", RESOLVE, json.dumps(arguments)]


Resolve = Callable[..., dict[str, object]]


@pytest.fixture
def hub(tmp_path: Path) -> FakeHub:
    """Two commits of acme/model, in whose files stands which commit they are of."""
    snapshots = {commit: tmp_path / "origin" / commit for commit in (OLD, NEW)}
    for commit, folder in snapshots.items():
        for name in (*FILES, *STRAYS):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name} of {commit}")
    return FakeHub("acme/model", snapshots, {"main": NEW, "v1.0": OLD, "feature/x": OLD})


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> Iterator[dict[str, str]]:
    with hub.serve() as endpoint:
        yield user_environment(tmp_path, HF_ENDPOINT=endpoint)


@pytest.fixture
def resolved(environment: dict[str, str]) -> Resolve:
    """Runs `command` to its end, with changes to the environment."""

    def run(changes: dict[str, str] | None = None, **arguments: object) -> dict[str, object]:
        result = subprocess.run(
            command(**arguments),
            env=environment | (changes or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in result.stderr, result.stderr
        return json.loads(result.stdout) if result.returncode == 0 else {"error": result.stderr.strip()}

    return run


def snapshot(hub: FakeHub, commit: str, names: Iterable[str] = FILES) -> dict[str, object]:
    """What `resolve` prints when it got these files of the commit, each whole."""
    folder = hub.snapshots[commit]
    digests = {name: hashlib.sha1((folder / name).read_bytes()).hexdigest() for name in names}
    return {"revision": commit, "files": digests}


def test_a_snapshot_without_strays_and_without_weights_for_dummy_loading(hub: FakeHub, resolved: Resolve):
    assert resolved(weights=False) == snapshot(hub, NEW, set(FILES) - {"model.safetensors"})
    assert resolved() == snapshot(hub, NEW)


@pytest.mark.parametrize("revision", ["v1.0", "feature/x", OLD])
def test_a_tag_a_branch_and_a_commit(hub: FakeHub, resolved: Resolve, revision: str):
    assert resolved(revision=revision) == snapshot(hub, OLD)


def test_a_cut_connection_is_resumed_where_it_broke_off(hub: FakeHub, resolved: Resolve):
    chunk = 10 * 2**20  # the client keeps whole chunks of a broken answer
    (hub.snapshots[NEW] / "model.safetensors").write_bytes(bytes(3 * chunk))
    hub.cuts["model.safetensors"] = 1

    assert resolved() == snapshot(hub, NEW)
    assert hub.downloads("model.safetensors") == [None, f"bytes={chunk}-"]


def test_what_a_broken_download_got_is_not_downloaded_again(hub: FakeHub, resolved: Resolve):
    hub.refusals[f"/acme/model/resolve/{NEW}/tokenizer.json"] = (403, "Forbidden")
    assert "403" in resolved()["error"]

    hub.refusals.clear()
    assert resolved() == snapshot(hub, NEW)
    assert hub.downloads("config.json") == [None]


def test_two_processes_at_once(hub: FakeHub, environment: dict[str, str]):
    hub.pace = 0.3
    both = [
        subprocess.Popen(command(), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]

    assert [json.loads(process.communicate()[0]) for process in both] == [snapshot(hub, NEW)] * 2
    assert hub.downloads("model.safetensors") == [None], "the second waits for the first"


def test_a_terminal_shows_a_bar(environment: dict[str, str]):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with subprocess.Popen(command(), env=environment, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while piece := read(ours):
            shown += piece
    os.close(ours)

    assert process.returncode == 0
    assert re.search(rb"Fetching 4 files: 100%.*4/4", shown), shown.decode()


def read(terminal: int) -> bytes:
    """The next piece; empty once nobody has the terminal open any more, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_the_cache_serves_without_the_hub_and_offline(hub: FakeHub, resolved: Resolve):
    assert resolved() == snapshot(hub, NEW)
    asked = len(hub.requests)

    assert resolved({"HF_ENDPOINT": NO_HUB}) == snapshot(hub, NEW)
    assert resolved({"HF_HUB_OFFLINE": "1"}) == snapshot(hub, NEW)
    assert len(hub.requests) == asked


def test_offline_without_the_weights(resolved: Resolve):
    assert resolved(weights=False)["revision"] == NEW

    assert re.fullmatch(
        r"acme/model is not complete in the cache \S+, and HF_HUB_OFFLINE is set: "
        r"download it first with `hf download acme/model`",
        resolved({"HF_HUB_OFFLINE": "1"})["error"],
    )


BAR = "Fetching 4 files:"
GATED = r"acme/model is gated: ask for access at http://127\S+/acme/model and set HF_TOKEN to your token"


@pytest.mark.parametrize(
    ("flags", "settings", "refusals", "sentence"),
    [
        (
            ["--model", "acme/modle"],
            {},
            {},
            r"acme/modle is no folder here and not on the Hugging Face hub: check the spelling, .*",
        ),
        (["--model", "modle"], {}, {}, r"modle is no folder here and not on the Hugging Face hub: .*"),
        (["--revision", "v9"], {}, {}, r"acme/model has no revision 'v9' on the Hugging Face hub"),
        (["--revision", "2" * 40], {}, {}, r"acme/model has no revision '2+' on the Hugging Face hub"),
        ([], {}, {"/": (401, "GatedRepo")}, GATED),
        ([], {}, {"/acme/model/resolve": (403, "GatedRepo")}, GATED),
        (
            ["--revision", "v1.0"],
            {"HF_ENDPOINT": NO_HUB},
            {},
            r"acme/model at revision v1.0 is not complete in the cache \S+, and the hub cannot be reached \(.*refused\): "
            r"download it first with `hf download acme/model --revision v1.0`",
        ),
        ([], {"HF_HUB_OFFLINE": "1"}, {}, r"acme/model is not .*, and HF_HUB_OFFLINE is set: download it .*"),
        (
            [],
            {},
            {"/": (503, "Down")},
            r"acme/model is not .*, and the hub cannot be reached \(.*503.*\): .*",
        ),
        ([], {}, {"/": (200, "Portal")}, r"acme/model could not be downloaded from http://127\S+: .+"),
        ([], {"HF_ENDPOINT": "hub"}, {}, r"acme/model could not be downloaded from hub: .*protocol.*"),
    ],
)
def test_a_refusal_is_one_sentence(
    hub: FakeHub,
    environment: dict[str, str],
    flags: list[str],
    settings: dict[str, str],
    refusals: dict[str, tuple[int, str]],
    sentence: str,
):
    hub.refusals |= refusals
    generate = [sys.executable, "-m", "helios", "generate", "--model", "acme/model", *flags, "hello"]

    result = subprocess.run(generate, env=environment | settings, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (2, "")
    *above, said = result.stderr.splitlines()
    assert re.fullmatch(f"helios: {sentence}", said), result.stderr
    assert all(line.startswith(BAR) for line in above if line), "nothing but the client's bar"
