"""Where a model's files come from: bundled, a folder or the hub's cache, and never the network without need."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from helpers.checkpoints import save_hub_cache
from huggingface_hub import constants

from helios.model.hub import ModelFiles, ModelNotFoundError, resolve

OLD, NEW = "0" * 40, "1" * 40
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
)


@pytest.fixture
def connections(monkeypatch):
    """Blocks the network; lists the addresses that something tried to reach beyond the loopback."""
    tried: list[object] = []
    connect, lookup = socket.socket.connect, socket.getaddrinfo

    def guard(host, allowed, *args, **kwargs):
        if host not in ("127.0.0.1", "::1", "localhost"):
            tried.append(host)
            raise OSError(f"the network is blocked: {host}")
        return allowed(*args, **kwargs)

    monkeypatch.setattr(
        socket.socket, "connect", lambda self, address: guard(address[0], connect, self, address)
    )
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **kw: guard(host, lookup, host, *args, **kw)
    )
    return tried


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache with two revisions of one model, each of whose files says which revision it is."""
    snapshots = {}
    for commit in (OLD, NEW):
        snapshots[commit] = tmp_path / "source" / commit
        snapshots[commit].mkdir(parents=True)
        for name in FILES:
            (snapshots[commit] / name).write_text(json.dumps(commit))
    folder = save_hub_cache(tmp_path / "hub", "acme/model", snapshots, main=NEW)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_the_bundled_model(connections):
    files = resolve("tiny")

    assert files.name == "tiny"
    assert files.revision is None
    assert (files.path / "config.json").is_file()
    assert connections == []


@pytest.mark.parametrize("name", ["plain", "Qwen3-0.6B.v2", "with a space", "ünï"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_local_folder_needs_no_network(tmp_path, connections, name, slash):
    path = make_folder(tmp_path / name)

    assert resolve(f"{path}{slash}") == ModelFiles(path, None, name)
    assert connections == []


def test_a_relative_folder_and_a_home_folder(tmp_path, monkeypatch):
    make_folder(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert resolve("org/model").name == "model"
    assert resolve("./org/model/").name == "model"
    assert resolve("~/org/model").path == tmp_path / "org" / "model"


def test_a_folder_in_the_hubs_cache_knows_its_commit(cache):
    assert resolve(str(cache / "models--acme--model" / "snapshots" / OLD)).revision == OLD


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("main", NEW), (OLD, OLD), (NEW, NEW)])
def test_offline_every_file_comes_from_the_one_cached_revision(
    cache, connections, monkeypatch, revision, commit
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    files = resolve("acme/model", revision)

    assert (files.name, files.revision) == ("acme/model", commit)
    assert [json.loads((files.path / name).read_text()) for name in FILES] == [commit] * len(FILES)
    assert connections == []


@pytest.mark.parametrize(
    ("model", "revision"), [("acme/other", None), ("acme/model", "2" * 40), ("acme/model", "v9")]
)
def test_offline_and_not_cached(cache, connections, monkeypatch, model, revision):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(
        ModelNotFoundError, match=rf"{model}.* not complete in the cache .*HF_HUB_OFFLINE is set"
    ):
        resolve(model, revision)
    assert connections == []


def test_without_a_network_the_cache_still_serves(cache, connections):
    assert resolve("acme/model").revision == NEW

    with pytest.raises(
        ModelNotFoundError, match=r"acme/other is not complete in the cache .* cannot be reached"
    ):
        resolve("acme/other")
    assert connections, "the hub was to be asked"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("/no/such/folder", "folder /no/such/folder does not exist"),
        ("./missing", r"folder \./missing does not exist"),
        ("some/missing/", "folder some/missing/ does not exist"),
        ("a b", "'a b' is neither an existing folder nor a hub id"),
    ],
)
def test_what_cannot_be_a_hub_id_asks_no_hub(connections, model, sentence):
    with pytest.raises(ModelNotFoundError, match=sentence):
        resolve(model)
    assert connections == []


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"holds no config.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("model", ["tiny", None])
def test_a_revision_of_a_local_model_is_refused(folder, model):
    with pytest.raises(ModelNotFoundError, match=r"revision 'main' means nothing for .* a local folder"):
        resolve(model or str(folder), "main")
