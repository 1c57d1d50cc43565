"""ModelConfig against the transformers library's own reading, and every refusal by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.models.config import ModelConfig, ModelError, RopeConfig, UnsupportedModelError

CONFIG_CLASSES = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(
    folder: Path, architecture: str = "LlamaForCausalLM", *, generation: Any = None, **fields: Any
) -> ModelConfig:
    config = {"architectures": [architecture], **fields}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize("architecture", CONFIG_CLASSES)
def test_absent_keys_mean_what_transformers_takes_them_for(
    tmp_path: Path, architecture: str
) -> None:
    config = read(tmp_path, architecture)
    oracle = CONFIG_CLASSES[architecture]()
    assert config.vocab_size == oracle.vocab_size
    assert config.hidden_size == oracle.hidden_size
    assert config.intermediate_size == oracle.intermediate_size
    assert config.num_layers == oracle.num_hidden_layers
    assert config.num_heads == oracle.num_attention_heads
    assert config.num_kv_heads == oracle.num_key_value_heads
    assert config.head_dim == getattr(oracle, "head_dim", 4096 // 32)
    assert config.rms_norm_eps == oracle.rms_norm_eps
    assert config.max_position_embeddings == oracle.max_position_embeddings
    assert config.tie_word_embeddings == oracle.tie_word_embeddings
    assert config.sliding_window == getattr(oracle, "sliding_window", None)
    assert config.rope == RopeConfig(theta=10000.0)
    assert config.eos_token_ids == ((2,) if oracle.eos_token_id == 2 else ())


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("LlamaForCausalLM", (True, True, True, False)),
        ("MistralForCausalLM", (False, False, False, False)),
        ("Qwen2ForCausalLM", (True, False, False, False)),
        ("Qwen3ForCausalLM", (True, True, False, True)),
    ],
)
def test_biases_and_qk_norm_follow_the_architecture(
    tmp_path: Path, architecture: str, expected: tuple[bool, ...]
) -> None:
    config = read(tmp_path, architecture, attention_bias=True, mlp_bias=True)
    found = (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)
    assert found == expected


def test_a_config_saved_by_transformers_reads_back(tmp_path: Path) -> None:
    rope_parameters = {"rope_theta": 500000.0, **LLAMA3_ROPE}
    transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        num_key_value_heads=8,
        head_dim=64,
        rope_parameters=rope_parameters,
        tie_word_embeddings=True,
        eos_token_id=[128001, 128009],
        dtype="bfloat16",
    ).save_pretrained(tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    assert (config.num_kv_heads, config.head_dim) == (8, 64)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (128001, 128009)
    assert config.rope == RopeConfig(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)


def test_old_and_new_style_rope_keys_mean_the_same(tmp_path: Path) -> None:
    old = read(tmp_path, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, torch_dtype="bfloat16")
    new = read(tmp_path, rope_parameters={"rope_theta": 500000.0, **LLAMA3_ROPE}, dtype="bfloat16")
    assert old == new


def test_linear_scaling_with_the_oldest_key_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, rope_scaling={"type": "linear", "factor": 4})
    assert config.rope == RopeConfig(theta=10000.0, kind="linear", factor=4.0)


def test_end_of_sequence_ids_are_the_union_of_both_files(tmp_path: Path) -> None:
    config = read(tmp_path, eos_token_id=7, generation={"eos_token_id": [9, 7]})
    assert config.eos_token_ids == (7, 9)


def test_an_id_in_generation_config_replaces_the_default(tmp_path: Path) -> None:
    assert read(tmp_path, generation={"eos_token_id": 9}).eos_token_ids == (9,)


def test_mistral_without_a_window_attends_to_everything(tmp_path: Path) -> None:
    assert read(tmp_path, "MistralForCausalLM", sliding_window=None).sliding_window is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 64}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, 64),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 99}, None),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 32}, 4096),
    ],
)
def test_qwen_window_holds_for_all_layers_or_none(
    tmp_path: Path, fields: dict[str, Any], expected: int | None
) -> None:
    assert read(tmp_path, "Qwen2ForCausalLM", **fields).sliding_window == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"dtype": "int8"}, "int8"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor 0.25"),
        ({"pretraining_tp": 2}, "pretraining_tp 2"),
        ({"num_attention_heads": 32, "num_key_value_heads": 5}, "num_key_value_heads 5"),
        ({"num_attention_heads": 33}, "num_attention_heads 33"),
        ({"head_dim": 63}, "head_dim 63"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True},
            "mix of layer types",
        ),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(tmp_path, **fields)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ("{}", "must name one architecture"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": "big"}', "hidden_size"),
        ('{"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 0}', "rms_norm_eps"),
        ('{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": 1}', "tie_word_emb"),
        ('{"architectures": ["LlamaForCausalLM"], "eos_token_id": "x"}', "eos_token_id"),
        ('{"architectures": ["LlamaForCausalLM"], "rope_scaling": 4}', "rope_scaling"),
        (
            '{"architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "linear"}}',
            "factor must be a positive number",
        ),
    ],
)
def test_a_broken_config_names_the_broken_part(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=reason):
        ModelConfig.from_folder(tmp_path)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        ModelConfig.from_folder(tmp_path)
