"""Settings: where each value comes from, and the sentence that a wrong one gets."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from helios.config import ConfigError, EngineConfig, ServerConfig
from helios.faults import Refusal
from helios.options import add_flags, given_flags, options, parse_size, serving_only

NOWHERE = Path("no-such.env")

SEED_NAMES = {
    "HELIOS_MODEL_ID": ("Qwen/Qwen3-4B", "model", "Qwen/Qwen3-4B"),
    "HELIOS_MODEL_REVISION": ("main", "revision", "main"),
    "HELIOS_MAX_GPU_UTILIZATION": ("0.8", "gpu_memory_utilization", 0.8),
    "HELIOS_WEIGHT_HEADROOM_RATIO": ("0.1", "weight_headroom_ratio", 0.1),
    "HELIOS_KV_CACHE_HEADROOM_RATIO": ("0.2", "kv_cache_headroom_ratio", 0.2),
    "HELIOS_PREFIX_CACHE_TTL_SECONDS": ("60", "prefix_cache_ttl", 60.0),
    "HELIOS_PREFILL_CHUNK_SIZE": ("512", "max_num_batched_tokens", 512),
    "HELIOS_MAX_BATCH_SIZE": ("8", "max_num_seqs", 8),
    "HELIOS_MAX_QUEUE_SIZE": ("16", "max_queue_size", 16),
    "HELIOS_BATCH_WAIT_MS": ("2.5", "batch_wait_ms", 2.5),
    "HELIOS_TORCH_COMPILE": ("0", "compile", False),
    "HELIOS_COMPILE_FULLGRAPH": ("false", "compile_fullgraph", False),
    "HELIOS_COMPILE_DIAGNOSTICS": ("on", "compile_diagnostics", True),
}


def from_env(
    env_file: Path = NOWHERE, environ: dict[str, str] | None = None, **overrides: object
) -> EngineConfig:
    return EngineConfig.from_env(environ=environ or {}, env_file=env_file, **overrides)


@pytest.mark.parametrize("name", SEED_NAMES)
def test_seed_variables_set_their_field(name: str):
    text, field, value = SEED_NAMES[name]
    assert getattr(from_env(environ={name: text}), field) == value


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig])
def test_every_field_has_a_variable_a_flag_and_help(config: type):
    names = [opt.name for opt in options(config)]
    assert names == [field.name for field in dataclasses.fields(config)]
    for opt in options(config):
        assert opt.variables[0] == f"HELIOS_{opt.name.upper()}"
        assert opt.help


def test_no_variable_belongs_to_two_fields():
    names = [
        name for config in (EngineConfig, ServerConfig) for opt in options(config) for name in opt.variables
    ]
    assert len(names) == len(set(names))


def test_argument_beats_environment_beats_dotenv_beats_default(tmp_path: Path):
    env_file = tmp_path / ".env"
    env_file.write_text("HELIOS_PAGE_SIZE=32\nHELIOS_SEED=7\nHELIOS_MAX_BATCH_SIZE=4\nOTHER=1\n")
    config = from_env(env_file, {"HELIOS_PAGE_SIZE": "64", "HELIOS_SEED": "8"}, page_size=128)
    assert (config.page_size, config.seed, config.max_num_seqs, config.max_queue_size) == (128, 8, 4, 1024)


def test_the_environment_beats_dotenv_under_another_name(tmp_path: Path):
    env_file = tmp_path / ".env"
    env_file.write_text("HELIOS_MODEL_ID=from-file\n")
    assert from_env(env_file, {"HELIOS_MODEL": "from-environment"}).model == "from-environment"


def test_reading_dotenv_leaves_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("HELIOS_SEED=7\n")
    before = dict(os.environ)
    assert EngineConfig.from_env().seed == 7
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"HELIOS_MODLE": "x"},
            "HELIOS_MODLE is not a variable that Helios knows: did you mean HELIOS_MODEL",
        ),
        (
            {"HELIOS_MODEL": "a", "HELIOS_MODEL_ID": "b"},
            "HELIOS_MODEL=a and HELIOS_MODEL_ID=b both set model and differ: keep one",
        ),
        (
            {"HELIOS_PAGE_SIZE": "24"},
            "HELIOS_PAGE_SIZE must be a power of two from 16 to 256, or none, got 24",
        ),
        (
            {"HELIOS_PAGE_SIZE": "big"},
            "HELIOS_PAGE_SIZE must be a power of two from 16 to 256, or none, got 'big'",
        ),
        ({"HELIOS_PAGE_SIZE": " "}, "HELIOS_PAGE_SIZE is set but empty"),
        ({"HELIOS_COMPILE": "maybe"}, "HELIOS_COMPILE must be 1 or 0 .* got 'maybe'"),
        ({"HELIOS_SEED": "1.5"}, "HELIOS_SEED must be a whole number .* got '1.5'"),
        (
            {"HELIOS_DECODE_BUCKETS": "4,2"},
            r"HELIOS_DECODE_BUCKETS must be positive .* ascending order.* got \(4, 2\)",
        ),
        ({"HELIOS_KV_CACHE_MEMORY": "8XB"}, "HELIOS_KV_CACHE_MEMORY must be a positive number of bytes"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        from_env(environ=environ)


def test_an_error_in_dotenv_names_the_file(tmp_path: Path):
    env_file = tmp_path / ".env"
    env_file.write_text("HELIOS_SEED=x\n")
    with pytest.raises(ConfigError, match=r"HELIOS_SEED in .*\.env must be a whole number"):
        from_env(env_file)


def test_two_names_that_agree_are_fine():
    assert from_env(environ={"HELIOS_COMPILE": "0", "HELIOS_TORCH_COMPILE": "off"}).compile is False


def test_the_servers_variables_are_known_to_the_engine():
    environ = {"HELIOS_PORT": "9000", "HELIOS_CORS_ORIGINS": "https://a.example, http://b.example:81"}
    from_env(environ=environ)
    server = ServerConfig.from_env(environ=environ, env_file=NOWHERE)
    assert (server.port, server.cors_origins) == (9000, ("https://a.example", "http://b.example:81"))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": ""}, "model must be a folder or a model name, got ''"),
        ({"model": 3}, "model must be .* got 3"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"dtype": "int8"}, "dtype must be one of auto, bfloat16, float16, float32, got 'int8'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number from 1 to 65536, or none, got 0"),
        ({"max_num_seqs": True}, "max_num_seqs must be .* got True"),
        ({"max_num_seqs": "8"}, "max_num_seqs must be .* got '8'"),
        ({"page_size": 8}, "page_size must be a power of two"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be a fraction above 0 and at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization must be"),
        ({"prefix_cache_ttl": 0}, "prefix_cache_ttl must be .* --no-enable-prefix-caching"),
        ({"batch_wait_ms": -1}, "batch_wait_ms must be a number of milliseconds from 0 to 1000"),
        ({"num_pages": 1}, "num_pages must be a whole number of at least 2"),
        ({"compile": 1}, "compile must be 1 or 0 .* got 1"),
        ({"decode_buckets": ()}, "decode_buckets must be positive whole numbers in ascending order"),
        ({"decode_buckets": (1, 1)}, "decode_buckets must be"),
        ({"decode_buckets": (1, "2")}, "decode_buckets must be"),
        (
            {"decode_buckets": (1, 64), "max_num_seqs": 32},
            "decode_buckets must not pass max_num_seqs=32, got 64",
        ),
        ({"packed_buckets": (512,), "max_num_batched_tokens": 256}, "packed_buckets must not pass"),
        ({"num_pages": 10, "kv_cache_memory": 2**20}, "both size the KV pool: give one of them"),
        ({"strict_capture": True, "compile": False}, "strict_capture=True needs compile=True"),
    ],
)
def test_a_wrong_field_is_named_with_what_works(fields: dict, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        EngineConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"port": 70000}, "port must be a whole number from 0 to 65535, got 70000"),
        ({"cors_origins": ("example.com",)}, "cors_origins must be origins such as https://example.com"),
        ({"max_body_bytes": 10}, "max_body_bytes must be at least 1KiB"),
        ({"drain_seconds": -1}, "drain_seconds must be a number of at least 0"),
        ({"api_key": " "}, "api_key must be a key"),
    ],
)
def test_a_wrong_server_field_is_named(fields: dict, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        ServerConfig(**fields)


def test_buckets_may_end_exactly_at_their_limit():
    config = EngineConfig(
        decode_buckets=(1, 32), max_num_seqs=32, packed_buckets=(256,), max_num_batched_tokens=256
    )
    assert (config.decode_buckets[-1], config.packed_buckets[-1]) == (32, 256)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": 8}, "page_size"),
        ({"decode_buckets": (64,), "max_num_seqs": 32}, "decode_buckets"),
        ({"strict_capture": True, "compile": False}, "strict_capture"),
        ({"num_pages": 10, "kv_cache_memory": 2**20}, "num_pages"),
    ],
)
def test_a_refusal_knows_its_field(fields: dict, field: str):
    with pytest.raises(Refusal) as refused:
        EngineConfig(**fields)
    assert refused.value.field == field


def test_what_only_a_server_needs_is_marked_where_it_is_declared():
    assert serving_only(EngineConfig) == ("served_model_name", "max_queue_size", "batch_wait_ms")


def test_values_take_their_fields_type():
    config = EngineConfig(decode_buckets=[1, 2], prefix_cache_ttl=60, cache_dir="~/somewhere")
    assert config.decode_buckets == (1, 2)
    assert type(config.prefix_cache_ttl) is float
    assert config.cache_dir == os.path.expanduser("~/somewhere")


def test_the_api_key_stays_out_of_logs():
    assert "secret" not in repr(ServerConfig(api_key="secret"))


def test_a_configuration_travels_to_another_process():
    config = EngineConfig(prefix_cache_ttl=float("inf"), decode_buckets=(1, 2))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("8GiB", 8 * 2**30), ("1.5 GiB", 3 * 2**29), ("512mb", 512 * 10**6), ("1KiB", 1024)],
)
def test_sizes(text: str, size: int):
    assert parse_size(text) == size


def parse_flags(*flags: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, EngineConfig, "engine")
    add_flags(parser, ServerConfig, "server")
    args = parser.parse_args(flags)
    return given_flags(args, EngineConfig) | given_flags(args, ServerConfig)


def test_only_given_flags_count():
    assert parse_flags() == {}
    given = parse_flags(
        "--max-model-len", "4096", "--no-compile", "--kv-cache-memory", "1GiB", "--no-thinking"
    )
    assert given == {
        "max_model_len": 4096,
        "compile": False,
        "kv_cache_memory": 2**30,
        "enable_thinking": False,
    }


def test_none_is_a_value_where_a_field_is_optional():
    assert parse_flags("--page-size", "none") == {"page_size": None}
    assert from_env(environ={"HELIOS_PAGE_SIZE": "32"}, page_size=None).page_size is None


def test_a_wrong_flag_is_named():
    with pytest.raises(
        argparse.ArgumentError, match="--page-size: must be a power of two from 16 to 256, or none, got 24"
    ):
        parse_flags("--page-size", "24")
