"""The GGUF converter: exact values on a tiny file, and sense in what the real model writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.models.config import ModelConfig, RopeConfig
from engine.models.gguf import ConversionError, convert, to_bfloat16
from engine.models.weights import Weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 4, 2, 8, 2
TOKENS = ["<eos>", "<start>", "<tool>", "a", "b", "ab", "1", "2", "Ġ", "Ġa"]
TOKEN_TYPES = [3, 3, 4, 1, 1, 1, 1, 1, 1, 1]

SAMPLE_TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "  leading, trailing and   inner spaces  ",
    "tabs\tand\nnew\r\n\n\nlines",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment",
    "Grüße, café, naïve, Zürich, español, português",
    "你好，世界。東京は日本の首都です。",
    "مرحبا بالعالم, שלום עולם, Привет, мир",
    "emoji 🙂👩‍👩‍👧‍👦🇨🇭 and a combining e\u0301",
    "3.14159 and 1,000,000 in 2025-01-31",
    "\x00\x7f\u200b\ufeff",
    "don't I'll we've THEY'RE",
]


def known_weights() -> dict[str, np.ndarray]:
    """Random values that bfloat16 holds exactly, under their Hugging Face names."""
    shapes = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("gate", "up", "down"):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{name}.weight"] = (HIDDEN,)
        for name, num_heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("o", HEADS)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (num_heads * HEAD_DIM, HIDDEN)
    generator = np.random.default_rng(0)
    return {
        name: generator.integers(-128, 128, size=shape).astype(np.float32) / 64
        for name, shape in shapes.items()
    }


def interleaved(weight: np.ndarray) -> np.ndarray:
    """GGUF's row order, written out: row 2i of a head is row i, row 2i + 1 is row i + n/2."""
    rows = []
    for first in range(0, len(weight), HEAD_DIM):
        for i in range(HEAD_DIM // 2):
            rows += [weight[first + i], weight[first + i + HEAD_DIM // 2]]
    return np.stack(rows)


def gguf_name(name: str) -> str:
    for old, new in {
        "model.layers.": "blk.",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
        "lm_head": "output",
    }.items():
        name = name.replace(old, new)
    return name


def write_gguf(path: Path, weights: dict[str, np.ndarray], *, architecture: str = "llama") -> None:
    """Tensors are float32, except those that are packed already, which are Q8_0."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TOKEN_TYPES)
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, weight in weights.items():
        packed = GGMLQuantizationType.Q8_0 if weight.dtype == np.uint8 else None
        permuted = interleaved(weight) if "q_proj" in name or "k_proj" in name else weight
        writer.add_tensor(gguf_name(name), permuted, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", known_weights())
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    return tmp_path / "out"


def test_every_weight_arrives_under_its_name_with_its_rows_in_order(converted: Path) -> None:
    expected = known_weights()
    with Weights(converted) as weights:
        assert set(weights) == set(expected)
        for name, values in expected.items():
            found = weights.expect(name, values.shape)
            assert found.dtype == torch.bfloat16
            assert np.array_equal(found.float().numpy(), values), name


def test_transformers_loads_the_converted_folder(converted: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted)
    norm = model.state_dict()["model.layers.1.input_layernorm.weight"].float().numpy()
    assert np.array_equal(norm, known_weights()["model.layers.1.input_layernorm.weight"])


def test_config_holds_the_metadata_with_the_shortest_epsilon(converted: Path) -> None:
    assert json.loads((converted / "config.json").read_text())["rms_norm_eps"] == 1e-5
    assert ModelConfig.from_folder(converted) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        max_position_embeddings=128,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        eos_token_ids=(0,),
    )


def test_an_output_tensor_unties_the_head(tmp_path: Path) -> None:
    weights = known_weights()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    write_gguf(tmp_path / "tiny.gguf", weights)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert not ModelConfig.from_folder(tmp_path / "out").tie_word_embeddings
    with Weights(tmp_path / "out") as found:
        head = found.expect("lm_head.weight", (len(TOKENS), HIDDEN)).float().numpy()
    assert np.array_equal(head, weights["lm_head.weight"])


def test_quantized_rows_are_permuted_and_dequantized(tmp_path: Path) -> None:
    """With a largest value of 127 in each row, Q8_0 has the scale 1 and keeps integers exactly."""
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = known_weights()
    weights[name] = np.round(weights[name] * 40)
    weights[name][:, 0] = 127
    packed = {name: quantize(weights[name], GGMLQuantizationType.Q8_0)}
    write_gguf(tmp_path / "q8.gguf", {**weights, **packed})
    convert(tmp_path / "q8.gguf", tmp_path / "out")
    with Weights(tmp_path / "out") as found:
        values = found.expect(name, weights[name].shape).float().numpy()
    assert np.array_equal(values, weights[name])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab", ["ab"]),
        ("ab a", ["ab", "Ġa"]),
        ("12", ["1", "2"]),
        ("a<start>b", ["a", "<start>", "b"]),
        ("a<tool>b", ["a", "<tool>", "b"]),
    ],
)
def test_tokenizer_merges_splits_digits_and_keeps_added_tokens_whole(
    converted: Path, text: str, tokens: list[str]
) -> None:
    encoding = Tokenizer.from_file(str(converted / "tokenizer.json")).encode(text)
    assert encoding.tokens == tokens
    assert encoding.ids == [TOKENS.index(token) for token in tokens]


def test_control_tokens_are_special_and_user_defined_ones_are_not(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.decode([1, 3, 2], skip_special_tokens=True) == "a<tool>"


def test_tokenizer_config_names_the_template_and_the_tokens(converted: Path) -> None:
    config = json.loads((converted / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages }}"
    assert (config["bos_token"], config["eos_token"]) == ("<start>", "<eos>")
    assert (config["pad_token"], config["unk_token"]) == ("<eos>", None)


def test_rounding_to_bfloat16_is_to_nearest_ties_to_even() -> None:
    random_bits = np.random.default_rng(0).integers(0, 2**32, size=100_000, dtype=np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([random_bits, ties]).view(np.float32)
    values = values[np.isfinite(values)]
    oracle = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16(values).view(np.int16), oracle)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", known_weights(), architecture="mamba")
    with pytest.raises(ConversionError, match="mamba"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    weights = {**known_weights(), "rope_freqs.weight": np.ones(4, dtype=np.float32)}
    write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(ConversionError, match=r"rope_freqs\.weight"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def test_a_weight_that_is_not_finite_leaves_no_usable_folder(tmp_path: Path) -> None:
    weights = known_weights()
    weights["model.norm.weight"][3] = np.nan
    write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(ConversionError, match=r"output_norm\.weight"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all, but long enough to look"])
def test_the_command_says_in_one_line_that_a_file_is_broken(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "broken.gguf"
    source.write_bytes(content)
    command = [sys.executable, "-m", "engine.models.gguf", str(source), str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"cannot convert {source}: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.model
def test_default_model_config_is_that_of_smollm2(model_dir: Path) -> None:
    config = ModelConfig.from_folder(model_dir)
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (49152, 576, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.rms_norm_eps, config.rope) == (1e-5, RopeConfig(theta=100000.0))
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (8192, True)
    assert config.eos_token_ids == (2,)


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("The capital of France is", " Paris."), ("Once upon a time", ", the city of")],
)
def test_default_model_writes_sense(model_dir: Path, prompt: str, expected: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    prompt_ids: Any = tokenizer(prompt, return_tensors="pt")
    output_ids = model.generate(**prompt_ids, max_new_tokens=6, do_sample=False)
    assert tokenizer.decode(output_ids[0]).startswith(prompt + expected)


@pytest.mark.model
@pytest.mark.parametrize("text", SAMPLE_TEXTS)
def test_default_tokenizer_gives_every_text_back(model_dir: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.model
def test_default_tokenizer_keeps_control_tokens_whole_and_digits_apart(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>").ids == [1]
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.encode("2025").tokens == ["2", "0", "2", "5"]
    assert tokenizer.get_vocab_size() == 49152
