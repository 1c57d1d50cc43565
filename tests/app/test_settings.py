from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.settings import WrongSettingsError, parse_settings


def problems(*arguments: str) -> list[str]:
    with pytest.raises(WrongSettingsError) as caught:
        parse_settings(list(arguments))
    return str(caught.value).splitlines()


def speculative_config(**keys) -> list[str]:
    return ["--speculative-config", json.dumps(keys)]


def test_defaults_need_no_flag():
    settings = parse_settings([])
    config = settings.engine_config(Path("/model"), None)
    assert settings.model_name == "SmolLM2-135M-Instruct"
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (8, 128)
    assert config.speculative.method == "suffix"
    assert config.enable_prefix_caching


def test_flags_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("TANDEM_PORT", "1")
    monkeypatch.setenv("TANDEM_MAX_NUM_SEQS", "3")
    settings = parse_settings(["--port", "2"])
    assert (settings.port, settings.max_num_seqs) == (2, 3)


def test_the_served_name_is_the_models_unless_it_is_given():
    assert parse_settings(["--model", "a/b"]).model_name == "a/b"
    assert parse_settings(["--model", "a/b", "--served-model-name", "c"]).model_name == "c"


def test_flags_reach_the_engine():
    flags = ["--dtype", "float32", "--num-threads", "2", "--no-enable-prefix-caching"]
    config = parse_settings([*flags, "--max-model-len", "512"]).engine_config(Path("/m"), None)
    assert (config.dtype, config.num_threads, config.max_model_len) == ("float32", 2, 512)
    assert not config.enable_prefix_caching


@pytest.mark.parametrize(
    ("keys", "method"),
    [
        ({}, "suffix"),
        ({"method": "suffix"}, "suffix"),
        ({"method": "ngram"}, "suffix"),
        ({"method": "none"}, "none"),
        ({"model": "d"}, "suffix_and_draft_model"),
        ({"model": "d", "method": "draft_model"}, "draft_model"),
        ({"method": "synthetic", "acceptance_rates": [0.8, 0.6]}, "synthetic"),
    ],
    ids=str,
)
def test_the_speculation_method_follows_from_the_keys(keys, method):
    settings = parse_settings(speculative_config(**keys))
    config = settings.engine_config(Path("/m"), Path("/d") if "model" in keys else None)
    assert config.speculative.method == method


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--port", "x"], "--port"),
        (["--port", "70000"], "--port"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--dtype", "int8"], "--dtype"),
        (["--device", "neuron"], "--device"),
        (["--unknown", "1"], "--unknown"),
        (["--model"], "--model"),
        (["--speculative-config", "{"], "--speculative-config"),
        (speculative_config(method="eagle"), "--speculative-config"),
        (speculative_config(method="draft_model"), "--speculative-config"),
        (speculative_config(method="suffix", model="d"), "--speculative-config"),
        (speculative_config(prompt_lookup_min=9, prompt_lookup_max=2), "--speculative-config"),
        (speculative_config(num_speculative_tokens=32), "--speculative-config"),
        (speculative_config(method="synthetic"), "--speculative-config"),
        (speculative_config(acceptance_rates=[0.5]), "--speculative-config"),
        (speculative_config(method="synthetic", acceptance_rates=[0.5, 0.6]), "must not rise"),
        (speculative_config(method="synthetic", acceptance_rates=[1.1]), "--speculative-config"),
    ],
    ids=str,
)
def test_a_wrong_flag_is_named_in_one_line(arguments, flag):
    [line] = problems(*arguments)
    assert flag in line


def test_every_problem_has_its_line():
    lines = problems("--port", "x", "--dtype", "y", *speculative_config(foo=1))
    assert len(lines) == 3
    assert '"foo"' in lines[2] or '"foo"' in " ".join(lines)
