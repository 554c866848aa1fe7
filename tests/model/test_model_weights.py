"""Loading: every row of every packed parameter from the right tensor, and every broken folder refused before a copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import empty_decoder, hf_model, load_decoder, save_checkpoint
from safetensors.torch import load_file, save_file

from helios.model.model_config import ModelConfig
from helios.model.packing import parameter_shapes, unpack
from helios.model.weights import (
    CheckpointError,
    check_device_memory,
    checkpoint_bytes,
    free_device_memory,
    load_weights,
    resolve_dtype,
)

INDEX = "model.safetensors.index.json"


@pytest.fixture
def copy(checkpoint, tmp_path):
    """A checkpoint folder of one's own, to break."""
    return lambda name: Path(shutil.copytree(checkpoint(name), tmp_path / name))


@pytest.fixture
def sharded(tmp_path):
    return save_checkpoint("qwen3", tmp_path / "sharded", shards=True)


def edit(folder: Path, change) -> None:
    """Rewrites model.safetensors after `change` has edited the mapping of its tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def set_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def assert_refused(folder: Path, sentence: str) -> None:
    """The error says so, and no parameter was touched."""
    config = ModelConfig.from_folder(folder)
    decoder = empty_decoder(config)

    with pytest.raises(CheckpointError, match=sentence):
        load_weights(decoder, config, folder)
    assert all(parameter.isnan().all() for parameter in decoder.parameters())


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied", "qwen3-gqa8", "qwen2", "qwen2-tied"])
def test_every_tensor_lands_in_its_rows(name, checkpoint):
    decoder, config = load_decoder(checkpoint(name))
    stored = load_file(checkpoint(name) / "model.safetensors")

    unpacked = unpack(dict(decoder.named_parameters()), config)

    assert unpacked.keys() == stored.keys()
    assert all(torch.equal(unpacked[key], stored[key]) for key in stored)
    assert not any(parameter.isnan().any() for parameter in decoder.parameters())


def test_packed_rows_are_ordered_q_k_v_and_gate_up(checkpoint):
    decoder, _ = load_decoder(checkpoint("qwen2"))
    theirs = hf_model("qwen2").model.layers[1]
    attention, ours = theirs.self_attn, decoder.layers[1]

    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert torch.equal(ours.qkv.weight, torch.cat([p.weight for p in projections]))
    assert torch.equal(ours.qkv.bias, torch.cat([p.bias for p in projections]))
    assert torch.equal(
        ours.gate_up.weight, torch.cat([theirs.mlp.gate_proj.weight, theirs.mlp.up_proj.weight])
    )


def test_shards_load_as_the_single_file_does(sharded, checkpoint):
    assert len(list(sharded.glob("*.safetensors"))) > 2

    one, _ = load_decoder(checkpoint("qwen3"))
    many, _ = load_decoder(sharded)

    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), many.parameters(), strict=True))


def test_stray_files_are_ignored(sharded):
    (sharded / "original").mkdir()
    for stray in ("consolidated.safetensors", "model-00009.safetensors", "original/model.safetensors"):
        save_file({"model.embed_tokens.weight": torch.zeros(1)}, sharded / stray)
    (sharded / "pytorch_model.bin").write_bytes(b"\x80")

    load_decoder(sharded)


def test_bfloat16_weights_load_into_any_dtype(tmp_path):
    folder = save_checkpoint("qwen3", tmp_path, dtype=torch.bfloat16)
    config = ModelConfig.from_folder(folder)
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        decoder = empty_decoder(config).to(dtype)
        load_weights(decoder, config, folder)
        assert torch.equal(decoder.norm.weight, stored.to(dtype))


def test_progress_ends_at_the_bytes_of_the_files(sharded):
    config = ModelConfig.from_folder(sharded)
    seen: list[tuple[int, int]] = []

    load_weights(
        empty_decoder(config), config, sharded, progress=lambda done, total: seen.append((done, total))
    )

    total = checkpoint_bytes(config, torch.float32)
    assert {all_bytes for _, all_bytes in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


def test_a_failing_progress_callback_ends_the_load(sharded):
    config = ModelConfig.from_folder(sharded)

    def stop(done: int, total: int) -> None:
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        load_weights(empty_decoder(config), config, sharded, progress=stop)


# Tied heads


def test_a_tied_head_is_the_embedding(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3-tied"))

    assert decoder.head.weight is decoder.embed.weight
    assert "head.weight" not in parameter_shapes(config)


def test_an_untied_model_without_a_head_is_refused(copy):
    folder = copy("qwen2")
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))

    assert_refused(
        folder, r"lm_head.weight is missing .*\(files: model.safetensors\).*tie_word_embeddings is false"
    )


# Broken folders


@pytest.mark.parametrize("part", ["q_proj.bias", "v_proj.weight", "o_proj.weight"])
def test_a_missing_tensor(copy, part):
    folder = copy("qwen2")
    edit(folder, lambda tensors: tensors.pop(f"model.layers.1.self_attn.{part}"))

    assert_refused(
        folder, rf"model.layers.1.self_attn.{part} is missing .*model.safetensors.*with q/k/v bias"
    )


def test_a_missing_q_norm(copy):
    folder = copy("qwen3")
    edit(folder, lambda tensors: tensors.pop("model.layers.0.self_attn.q_norm.weight"))

    assert_refused(folder, r"model.layers.0.self_attn.q_norm.weight is missing")


def test_a_bias_that_the_config_knows_nothing_of(copy):
    folder = copy("qwen3")
    edit(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))

    assert_refused(
        folder, r"q_proj.bias in .*model.safetensors has no place .* without q/k/v bias.* not match"
    )


def test_more_layers_than_the_config_says(copy):
    folder = copy("qwen3")
    set_config(folder, num_hidden_layers=1, layer_types=None)

    assert_refused(folder, r"model.layers.1.* has no place .*1 layers.*config does not match")


def test_fewer_layers_than_the_config_says(copy):
    folder = copy("qwen3")
    set_config(folder, num_hidden_layers=3, layer_types=None)

    assert_refused(folder, r"model.layers.2.* is missing .*3 layers")


@pytest.mark.parametrize(
    ("changes", "tensor"),
    [
        ({"intermediate_size": 128}, "gate_proj"),
        ({"vocab_size": 256}, "embed_tokens"),
        ({"head_dim": 32}, "q_proj"),
        ({"num_key_value_heads": 4}, "k_proj"),
    ],
)
def test_a_shape_unlike_the_configs(copy, changes, tensor):
    folder = copy("qwen3")
    set_config(folder, **changes)

    assert_refused(
        folder, rf"{tensor}.weight in .*model.safetensors has shape .* config.json asks for .*not match"
    )


def test_an_odd_dtype(copy):
    folder = copy("qwen3")
    edit(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e4m3fn)}))

    assert_refused(folder, r"model.norm.weight in .*model.safetensors has dtype F8_E4M3: BF16, F16, F32 work")


def test_other_tensors_are_ignored_with_one_line(copy, caplog):
    folder = copy("qwen3")
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    edit(folder, lambda tensors: tensors.update({"value_head.weight": torch.zeros(1)} | frequencies))

    load_decoder(folder)

    assert [record.message for record in caplog.records] == [
        "1 tensors are not part of the decoder and ignored: value_head.weight"
    ]


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_cut_file(copy, keep):
    folder = copy("qwen3")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])

    assert_refused(folder, r"model.safetensors \(\d+ bytes\) is cut short or no safetensors file")


def test_a_cut_shard_is_found_before_any_is_copied(sharded):
    last = sorted(sharded.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-8])

    assert_refused(sharded, rf"{last.name} \(\d+ bytes\) is cut short")


def test_a_missing_shard(sharded):
    last = sorted(sharded.glob("*.safetensors"))[-1]
    last.unlink()

    assert_refused(
        sharded, rf"{last.name}, which holds tensor \S+, is missing from .*it holds: .*config.json"
    )


def test_an_index_that_points_at_the_wrong_shard(sharded):
    index = json.loads((sharded / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    first, last = files[0], files[-1]
    tensor = next(name for name, file in index["weight_map"].items() if file == first)
    index["weight_map"][tensor] = last
    (sharded / INDEX).write_text(json.dumps(index))

    assert_refused(sharded, rf"tensor {tensor} is missing from .*{last}, where .*index.json places it")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "has no readable weight_map"),
        ("{}", "has no readable weight_map"),
        ('{"weight_map": {}}', "must give a file of this folder"),
        (
            '{"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}',
            "must give a file of this folder",
        ),
    ],
)
def test_a_broken_index(sharded, text, sentence):
    (sharded / INDEX).write_text(text)

    assert_refused(sharded, sentence)


def test_a_folder_of_another_format(copy):
    folder = copy("qwen3")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert_refused(
        folder,
        r"holds neither model.safetensors nor .*: config.json, .*pytorch_model.bin, .* safetensors only",
    )


def test_a_decoder_of_another_config_is_refused(checkpoint):
    decoder = empty_decoder(ModelConfig.from_folder(checkpoint("qwen3")))
    config = ModelConfig.from_folder(checkpoint("qwen2"))

    with pytest.raises(ValueError, match="decoder was not built from this config"):
        load_weights(decoder, config, checkpoint("qwen2"))


def test_an_unknown_load_format(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3"))

    with pytest.raises(ValueError, match=r"load_format must be one of auto, safetensors, dummy, got 'pt'"):
        load_weights(decoder, config, checkpoint("qwen3"), load_format="pt")


# Dummy weights


def dummy(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    decoder = empty_decoder(config)
    load_weights(decoder, config, Path("no/such/folder"), load_format="dummy", seed=seed)
    return dict(decoder.named_parameters())


def test_dummy_weights_need_no_files_and_repeat(checkpoint):
    config = ModelConfig.from_folder(checkpoint("qwen2"))
    first, again, other = dummy(config, 7), dummy(config, 7), dummy(config, 8)

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])
    assert not torch.equal(first["layers.0.o.weight"], first["layers.1.o.weight"])


def test_dummy_weights_are_small_noise_and_unit_norms(checkpoint):
    parameters = dummy(ModelConfig.from_folder(checkpoint("qwen3")), 0)

    for name, parameter in parameters.items():
        if "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name


def test_dummy_values_of_a_layer_do_not_depend_on_the_number_of_layers(checkpoint):
    folder = checkpoint("qwen3")
    config = json.loads((folder / "config.json").read_text())
    short = ModelConfig.from_hf(config | {"num_hidden_layers": 1, "layer_types": None})

    ours, theirs = dummy(short, 0), dummy(ModelConfig.from_folder(folder), 0)

    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# Memory and dtype


def test_device_memory_is_checked_with_the_numbers():
    gib = 2**30
    check_device_memory(8 * gib, 9 * gib, 0.05)

    with pytest.raises(
        ValueError, match=r"weights need 8.00 GiB, with weight_headroom_ratio 0.05 8.40 GiB, .* 8.20 GiB free"
    ):
        check_device_memory(8 * gib, int(8.2 * gib), 0.05)


def test_free_memory_of_the_cpu_is_between_a_megabyte_and_a_petabyte():
    assert 2**20 < free_device_memory("cpu") < 2**50


def test_bytes_of_a_model(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3-tied"))

    assert checkpoint_bytes(config, torch.float32) == sum(p.nbytes for p in decoder.parameters())
    assert checkpoint_bytes(config, torch.bfloat16) * 2 == checkpoint_bytes(config, torch.float32)


@pytest.mark.parametrize(
    ("requested", "device", "dtype"),
    [
        ("auto", "cuda:0", torch.bfloat16),
        ("auto", "cpu", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
        ("float32", "cuda", torch.float32),
    ],
)
def test_dtype(tmp_path, requested, device, dtype, caplog):
    config = ModelConfig.from_folder(save_checkpoint("qwen3", tmp_path, dtype=torch.bfloat16))

    assert resolve_dtype(requested, config, device) == dtype
    assert not caplog.records


def test_float16_warns(checkpoint, caplog):
    config = ModelConfig.from_folder(checkpoint("qwen3"))

    assert resolve_dtype("float16", config, "cuda") == torch.float16
    assert "float16" in caplog.text
    with pytest.raises(ValueError, match="dtype must be auto, bfloat16, float16 or float32, got 'int8'"):
        resolve_dtype("int8", config, "cuda")


PEAK = """
import json, sys
from pathlib import Path
import torch
from helpers.checkpoints import empty_decoder
from helios.model.model_config import ModelConfig
from helios.model.weights import load_weights

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

folder = Path(sys.argv[1])
config = ModelConfig.from_folder(folder)
decoder = empty_decoder(config)
before = peak_mib()
load_weights(decoder, config, folder)
print(peak_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_loading_holds_no_second_copy_in_host_memory(checkpoint, tmp_path):
    """Filling a decoder that already holds its 200 MiB raises the peak of a fresh process by a few tensors at most."""
    settings = json.loads((checkpoint("qwen3") / "config.json").read_text())
    settings |= {"hidden_size": 512, "intermediate_size": 8192, "num_hidden_layers": 4, "layer_types": None}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = ModelConfig.from_hf(settings)
    parameters = {name: torch.zeros(shape) for name, shape in parameter_shapes(config).items()}
    save_file(unpack(parameters, config), tmp_path / "model.safetensors")

    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert checkpoint_bytes(config, torch.float32) > 190 * 2**20
    assert int(result.stdout) < 50


@pytest.mark.gpu
def test_shards_land_on_the_gpu_as_on_the_cpu(sharded):
    config = ModelConfig.from_folder(sharded)
    expected, _ = load_decoder(sharded)
    decoder = empty_decoder(config).cuda()

    load_weights(decoder, config, sharded)

    pairs = zip(decoder.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in pairs)
