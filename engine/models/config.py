"""What a Llama-family model is made of, read from its Hugging Face folder.

Whatever the decoder does not compute exactly is refused here, by name, before a weight is read.
It knows nothing of devices, tensors or tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

RopeKind = Literal["default", "linear", "llama3"]

_ROPE_KINDS: Final = ("default", "linear", "llama3")
_WEIGHT_DTYPES: Final = ("float32", "float16", "bfloat16")

# What the transformers library assumes for a key that config.json leaves out.
_SHARED_DEFAULTS: Final[Mapping[str, Any]] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}
_LLAMA_DEFAULTS: Final[Mapping[str, Any]] = {
    **_SHARED_DEFAULTS,
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
}
_MISTRAL_DEFAULTS: Final[Mapping[str, Any]] = {
    **_SHARED_DEFAULTS,
    "vocab_size": 32000,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_QWEN_DEFAULTS: Final[Mapping[str, Any]] = {
    **_SHARED_DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LlamaForCausalLM": _LLAMA_DEFAULTS,
    "MistralForCausalLM": _MISTRAL_DEFAULTS,
    "Qwen2ForCausalLM": _QWEN_DEFAULTS,
    "Qwen3ForCausalLM": {**_QWEN_DEFAULTS, "head_dim": 128},
}
_DEFAULT_EOS_TOKEN_IDS: Final[Mapping[str, tuple[int, ...]]] = {
    "LlamaForCausalLM": (2,),
    "MistralForCausalLM": (2,),
}


class ModelError(Exception):
    """The model folder cannot be served; the message tells a person why."""


class UnsupportedModelError(ModelError):
    """The folder is sound, but the model needs something that the decoder does not compute."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the scaling fields mean nothing for kind "default"."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder-only model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json and, for the end-of-sequence ids, generation_config.json."""
        given = _Fields.read(folder / "config.json")
        architecture = _architecture(given)
        fields = given.with_defaults(_DEFAULTS[architecture])
        _refuse_unsupported(fields)
        num_heads, num_kv_heads = _head_counts(fields)
        has_attention_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
        attention_bias = has_attention_bias and fields.flag("attention_bias")
        return cls(
            architecture=architecture,
            vocab_size=fields.count("vocab_size"),
            hidden_size=fields.count("hidden_size"),
            intermediate_size=fields.count("intermediate_size"),
            num_layers=fields.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(fields, num_heads),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope=_rope(fields),
            max_position_embeddings=fields.count("max_position_embeddings"),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            output_bias=attention_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias"),
            qk_norm=architecture == "Qwen3ForCausalLM",
            sliding_window=_sliding_window(fields, architecture),
            eos_token_ids=_eos_token_ids(given, folder, architecture),
        )


class _Fields:
    """Typed reading of a JSON object; null counts as absent, a wrong type is an error."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values

    @classmethod
    def read(cls, path: Path) -> _Fields:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(f"{path} does not exist: it is not a Hugging Face model") from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path} must hold a JSON object, not {type(values).__name__}")
        return cls(path, values)

    def with_defaults(self, defaults: Mapping[str, Any]) -> _Fields:
        return _Fields(self._path, {**defaults, **self._values})

    def section(self, key: str) -> _Fields:
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self._invalid(key, value, "an object")
        return _Fields(self._path, value)

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def values(self) -> list[Any]:
        return list(self._values.values())

    def count(self, key: str, *, default: int | None = None) -> int:
        value = self._value(key, default)
        if type(value) is not int or value < 1:
            raise self._invalid(key, value, "a positive integer")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._invalid(key, value, "a positive number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._value(key, False)
        if not isinstance(value, bool):
            raise self._invalid(key, value, "true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self._value(key, ())
        token_ids = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(type(token_id) is int and token_id >= 0 for token_id in token_ids):
            raise self._invalid(key, value, "a token id or a list of token ids")
        return token_ids

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        return default if value is None else value

    def _invalid(self, key: str, value: Any, expected: str) -> ModelError:
        return ModelError(f"{self._path}: {key} must be {expected}, not {json.dumps(value)}")


def _architecture(fields: _Fields) -> str:
    match fields.get("architectures"):
        case [str(name)] if name in _DEFAULTS:
            return name
        case [str(name)]:
            raise _unsupported("architecture", name, _DEFAULTS)
        case other:
            raise ModelError(f"config.json must name one architecture, not {json.dumps(other)}")


def _refuse_unsupported(fields: _Fields) -> None:
    activation = fields.get("hidden_act") or "silu"
    if activation != "silu":
        raise _unsupported("activation", activation, ("silu",))
    dtype = str(fields.get("dtype") or fields.get("torch_dtype") or "float32")
    if dtype.removeprefix("torch.") not in _WEIGHT_DTYPES:
        raise _unsupported("weights dtype", dtype, _WEIGHT_DTYPES)
    quantization = fields.section("quantization_config")
    if quantization.values():
        method = quantization.get("quant_method") or "quantization_config"
        raise _unsupported("quantization", method, ("weights that are not quantized",))
    if fields.count("pretraining_tp", default=1) != 1:
        raise _unsupported("pretraining_tp", fields.get("pretraining_tp"), (1,))


def _head_counts(fields: _Fields) -> tuple[int, int]:
    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(
            f"num_attention_heads {num_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    return num_heads, num_kv_heads


def _head_dim(fields: _Fields, num_heads: int) -> int:
    hidden_size = fields.count("hidden_size")
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise UnsupportedModelError(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}"
        )
    head_dim = fields.count("head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise UnsupportedModelError(f"head_dim {head_dim} is odd: rotary embedding needs pairs")
    return head_dim


def _rope(fields: _Fields) -> RopeConfig:
    new_style = fields.get("rope_parameters") is not None
    rope = fields.section("rope_parameters" if new_style else "rope_scaling")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UnsupportedModelError("rope parameters that differ by layer are not supported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _ROPE_KINDS:
        raise _unsupported("rope type", kind, _ROPE_KINDS)
    for source in (fields, rope):
        if source.number("partial_rotary_factor", default=1.0) != 1.0:
            factor = source.get("partial_rotary_factor")
            raise _unsupported("partial_rotary_factor", factor, (1.0,))
    theta = rope.number("rope_theta", default=fields.number("rope_theta", default=10000.0))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=rope.number("factor"))
    return _llama3_rope(rope, theta=theta, max_position=fields.count("max_position_embeddings"))


def _llama3_rope(rope: _Fields, *, theta: float, max_position: int) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.count("original_max_position_embeddings", default=max_position),
    )


def _sliding_window(fields: _Fields, architecture: str) -> int | None:
    if architecture == "LlamaForCausalLM" or fields.get("sliding_window") is None:
        return None
    window = fields.count("sliding_window")
    if architecture == "MistralForCausalLM":
        return window
    if not fields.flag("use_sliding_window"):
        return None
    layer_types = _layer_types(fields)
    if len(layer_types) > 1:
        raise _unsupported("mix of layer types", sorted(layer_types), ("one type for all layers",))
    return window if "sliding_attention" in layer_types else None


def _layer_types(fields: _Fields) -> set[str]:
    layer_types = fields.get("layer_types")
    if layer_types is not None:
        return {str(layer_type) for layer_type in layer_types}
    num_layers = fields.count("num_hidden_layers")
    num_full_layers = min(int(fields.get("max_window_layers") or 0), num_layers)
    return {
        "full_attention" if layer < num_full_layers else "sliding_attention"
        for layer in range(num_layers)
    }


def _eos_token_ids(fields: _Fields, folder: Path, architecture: str) -> tuple[int, ...]:
    """The ids of both files, config.json's first; the library's default if neither has one."""
    token_ids = fields.token_ids("eos_token_id")
    generation_path = folder / "generation_config.json"
    if generation_path.exists():
        token_ids += _Fields.read(generation_path).token_ids("eos_token_id")
    return tuple(dict.fromkeys(token_ids)) or _DEFAULT_EOS_TOKEN_IDS.get(architecture, ())


def _unsupported(what: str, value: object, supported: Iterable[object]) -> UnsupportedModelError:
    names = ", ".join(map(str, supported))
    return UnsupportedModelError(f"{what} {value} is not supported; supported: {names}")
