"""SamplingDefaults: the model's file speaks first, Helios' own values fill what it leaves out."""

import json
import logging

import pytest

from helios.text.defaults import SamplingDefaults

GENERATION, CONFIG = "generation_config.json", "config.json"


def read(folder, settings, file=GENERATION):
    (folder / file).write_text(json.dumps(settings))
    return SamplingDefaults.from_folder(folder)


def test_a_folder_that_says_nothing(tmp_path):
    assert SamplingDefaults.from_folder(tmp_path) == SamplingDefaults(temperature=0.2, top_p=0.95, top_k=0)
    assert read(tmp_path, {"model_type": "qwen3", "eos_token_id": 2}, CONFIG) == SamplingDefaults()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
            SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1),
        ),
        ({"do_sample": True, "temperature": None}, SamplingDefaults()),
        ({"do_sample": True, "top_p": 0}, SamplingDefaults(top_p=1.0, top_k=1)),
        ({"do_sample": True, "top_k": -1}, SamplingDefaults()),
        ({"do_sample": True, "top_k": 10**30}, SamplingDefaults()),
        ({"do_sample": True, "repetition_penalty": 1.3}, SamplingDefaults(repetition_penalty=1.3)),
        (
            {"do_sample": True, "min_new_tokens": 4, "max_new_tokens": 64},
            SamplingDefaults(min_tokens=4, max_tokens=64),
        ),
    ],
)
def test_what_a_file_says(tmp_path, settings, expected):
    assert read(tmp_path, settings) == expected


@pytest.mark.parametrize(
    "settings", [{"do_sample": False}, {"do_sample": None}, {}, {"eos_token_id": [1, 2]}]
)
def test_a_file_samples_only_where_it_says_so(tmp_path, settings, caplog):
    assert read(tmp_path, settings).temperature == 0.0
    assert not caplog.records

    assert read(tmp_path, settings | {"temperature": 0.6, "top_k": 20}) == SamplingDefaults(0.0, top_k=20)
    assert "does not set do_sample to true" in caplog.text
    assert "temperature 0.6 is not used" in caplog.text


def test_older_models_say_it_in_config_json(tmp_path):
    old = {"model_type": "qwen2", "do_sample": True, "temperature": 0.7, "repetition_penalty": 1.1}
    assert read(tmp_path, old, CONFIG) == SamplingDefaults(temperature=0.7, repetition_penalty=1.1)
    assert (
        read(tmp_path, {"do_sample": True}) == SamplingDefaults()
    )  # with a file of its own, config.json is silent


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": "0.6"}, "temperature='0.6': it must be a number between 0 and 100"),
        ({"temperature": True}, "temperature=True: it must be a number"),
        ({"temperature": [1]}, r"temperature=\[1\]: it must be a number"),
        ({"temperature": -1}, "temperature=-1: it must be a number between 0 and 100"),
        ({"temperature": float("nan")}, "temperature=nan: it must be a number"),
        ({"top_p": 1.5}, "top_p=1.5: it must be a number between 0 and 1"),
        ({"top_k": -5}, "top_k=-5: it must be a positive count, or 0 or -1"),
        ({"top_k": 20.0}, "top_k=20.0: it must be a positive count"),
        ({"min_p": -0.1}, "min_p=-0.1: it must be a number between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: it must be a number between 0.01 and 100"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1: it must be a whole number of at least 0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: it must be a whole number of at least 1"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9: it must be at most max_new_tokens 8"),
        ({"do_sample": "false"}, "do_sample='false': it must be true or false"),
    ],
)
@pytest.mark.parametrize("file", [GENERATION, CONFIG])
def test_a_value_that_no_request_could_have_is_refused(tmp_path, file, settings, sentence):
    with pytest.raises(ValueError, match=rf"{file} has {sentence}"):
        read(tmp_path, settings, file)


def test_what_helios_does_not_do_is_named_in_one_warning(tmp_path, caplog):
    asked = {
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [7],
        "begin_suppress_tokens": [8],
        "bad_words_ids": [[9]],
        "forced_eos_token_id": 2,
        "num_beams": 4,
        "typical_p": 0.9,
    }
    read(tmp_path, {"do_sample": True} | asked)

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert all(f"{name} {value!r}" in record.message for name, value in asked.items())


def test_settings_that_ask_for_nothing_are_not_named(tmp_path, caplog):
    neutral = {
        "num_beams": 1,
        "typical_p": 1.0,
        "no_repeat_ngram_size": 0,
        "suppress_tokens": [],
        "max_length": 20,
    }
    read(
        tmp_path,
        {"do_sample": True, "length_penalty": 2.0, "bad_words_ids": None, "use_cache": True} | neutral,
    )

    assert not caplog.records
