"""SamplingDefaults: the model's file speaks first, Helios' own values fill what it leaves out."""

import json

import pytest

from helios.text.defaults import SamplingDefaults


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, SamplingDefaults(temperature=0.2, top_p=0.95, top_k=0, min_p=0.0)),
        ({"eos_token_id": [1, 2]}, SamplingDefaults()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
            SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1),
        ),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
        ({"temperature": None}, SamplingDefaults()),
    ],
)
def test_defaults(tmp_path, config, expected):
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert SamplingDefaults.from_folder(tmp_path) == expected


@pytest.mark.parametrize("value", ["0.6", True, [1]])
def test_a_value_that_is_no_number_is_named(tmp_path, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": value}))
    with pytest.raises(ValueError, match=r"generation_config\.json has temperature="):
        SamplingDefaults.from_folder(tmp_path)
