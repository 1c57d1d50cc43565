"""Converts a Llama-architecture GGUF file into a Hugging Face folder with bfloat16 weights.

    python -m engine.models.gguf SOURCE.gguf FOLDER

Weights are dequantized a few rows at a time. Rounding them to bfloat16 adds an error of 0.13 % RMS,
0.3 % of a Q4_1 quantization step and at most 5 %. It knows llama tensors and the smollm tokenizer;
anything else in the file is refused by name.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

_ROWS_PER_CHUNK: Final = 4096
_CONTROL_TOKEN: Final = 3
_USER_DEFINED_TOKEN: Final = 4

_GLOBAL_TENSORS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class ConversionError(Exception):
    """The GGUF file is broken, or holds something that is not converted."""


class GgufFile:
    """Metadata and tensors of one GGUF file."""

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ConversionError(f"{path} is not a readable GGUF file: {error}") from error
        self._fields = reader.fields
        self.tensors: list[ReaderTensor] = reader.tensors

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConversionError(f"the file has no {key}")
        return value


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor on its way: the source, its new name, and the heads to re-order, if any."""

    source: ReaderTensor
    name: str
    num_permuted_heads: int | None

    @property
    def shape(self) -> list[int]:
        return [int(size) for size in reversed(self.source.shape)]

    @property
    def num_bytes(self) -> int:
        return 2 * int(self.source.n_elements)


def convert(source: Path, folder: Path) -> None:
    """Write the folder; config.json comes last, so that a folder with it is complete."""
    gguf = GgufFile(source)
    config = model_config(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(plan_tensors(gguf, config), folder / "model.safetensors")
    build_tokenizer(gguf).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(gguf))
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special_ids)
    _write_json(folder / "config.json", config)


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """The Hugging Face config.json for the file's metadata."""
    architecture = gguf.require("general.architecture")
    if architecture != "llama":
        raise ConversionError(f"architecture {architecture} is not supported; supported: llama")
    scaling = gguf.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ConversionError(f"rope scaling {scaling} is not supported; supported: none")
    hidden_size = gguf.require("llama.embedding_length")
    num_heads = gguf.require("llama.attention.head_count")
    head_dim = gguf.get("llama.attention.key_length", hidden_size // num_heads)
    if gguf.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ConversionError("rotary embedding of a part of each head is not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": gguf.require("llama.feed_forward_length"),
        "num_hidden_layers": gguf.require("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": gguf.get("llama.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": _shortest(gguf.require("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(gguf.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "max_position_embeddings": gguf.require("llama.context_length"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in gguf.tensors),
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.require("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def plan_tensors(gguf: GgufFile, config: dict[str, Any]) -> list[TensorPlan]:
    """What becomes of each tensor, in the file's order.

    GGUF interleaves the two rotary halves of each query and key head; here they are halves again.
    """
    permuted_heads = {
        "self_attn.q_proj.weight": int(config["num_attention_heads"]),
        "self_attn.k_proj.weight": int(config["num_key_value_heads"]),
    }
    plans = []
    for tensor in gguf.tensors:
        name = _hugging_face_name(tensor.name)
        module = re.sub(r"^model\.layers\.\d+\.", "", name)
        plans.append(TensorPlan(tensor, name, permuted_heads.get(module)))
    return plans


def write_weights(plans: list[TensorPlan], path: Path) -> None:
    """Stream the tensors into a safetensors file, with a progress bar on stderr."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for plan in plans:
        end = offset + plan.num_bytes
        header[plan.name] = {"dtype": "BF16", "shape": plan.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    progress = tqdm(desc="converting", total=offset, unit="B", unit_scale=True)
    with path.open("wb") as file, progress:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for plan in plans:
            for chunk in bfloat16_chunks(plan):
                file.write(chunk.tobytes())
                progress.update(chunk.nbytes)


def bfloat16_chunks(plan: TensorPlan) -> Iterator[npt.NDArray[np.uint16]]:
    """The tensor's rows, dequantized, as the bits of bfloat16 numbers."""
    rows = plan.source.data
    if plan.num_permuted_heads is not None:
        rows = undo_rotary_permutation(rows, plan.num_permuted_heads)
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        values = dequantize(rows[start : start + _ROWS_PER_CHUNK], plan.source.tensor_type)
        if not np.isfinite(values).all():
            raise ConversionError(f"tensor {plan.source.name} holds values that are not finite")
        yield to_bfloat16(values)


def undo_rotary_permutation(rows: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Turn each head's row order 0, n/2, 1, n/2+1, ... back into 0, 1, 2, ...

    Quantization blocks lie inside a row, so that packed rows can be moved as they are.
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    halves: npt.NDArray[Any] = pairs.swapaxes(1, 2)
    return halves.reshape(rows.shape)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite float32 numbers to the nearest bfloat16, ties to even, and return its bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: npt.NDArray[np.uint32] = (bits + rounding) >> np.uint32(16)
    return rounded.astype("<u2")


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The byte-level BPE tokenizer in which each digit is a token of its own."""
    kind = (gguf.require("tokenizer.ggml.model"), gguf.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ConversionError(f"tokenizer {kind} is not supported; supported: ('gpt2', 'smollm')")
    if gguf.get("tokenizer.ggml.add_bos_token", False):
        raise ConversionError("a tokenizer that adds a first token is not supported")
    tokens = gguf.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.require("tokenizer.ggml.merges")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, tokens, gguf.require("tokenizer.ggml.token_type"))
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], token_types: list[int]) -> None:
    for token, token_type in zip(tokens, token_types, strict=True):
        if token_type == _CONTROL_TOKEN:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == _USER_DEFINED_TOKEN:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """The Hugging Face tokenizer_config.json: the chat template and the named tokens."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": gguf.require("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": gguf.get("tokenizer.chat_template"),
    }
    tokens = gguf.require("tokenizer.ggml.tokens")
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = gguf.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{role}_token"] = None if token_id is None else tokens[token_id]
    return config


def _hugging_face_name(gguf_name: str) -> str:
    stem, _, kind = gguf_name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if kind == "weight" and layer is not None and layer[2] in _LAYER_TENSORS:
        return f"model.layers.{layer[1]}.{_LAYER_TENSORS[layer[2]]}.weight"
    if kind == "weight" and stem in _GLOBAL_TENSORS:
        return f"{_GLOBAL_TENSORS[stem]}.weight"
    raise ConversionError(f"tensor {gguf_name} is not supported")


def _shortest(value: float) -> float:
    """The shortest decimal that names the same float32: 9.999999747378752e-06 becomes 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engine.models.gguf",
        description="Convert a Llama-architecture GGUF file into a Hugging Face folder.",
    )
    parser.add_argument("source", type=Path, metavar="SOURCE.gguf")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    try:
        convert(arguments.source, arguments.folder)
    except (ConversionError, OSError) as error:
        sys.exit(f"cannot convert {arguments.source}: {error}")


if __name__ == "__main__":
    main()
