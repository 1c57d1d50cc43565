"""Tiny random models, saved as Hugging Face folders by the transformers library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

MakeModel = Callable[[str], Path]


@dataclass(frozen=True)
class TinyModel:
    """A configuration with all that makes it different from the plain one."""

    architecture: str
    fields: dict[str, Any] = field(default_factory=dict)
    max_shard_size: str = "1GB"


_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TINY_MODELS = {
    "llama": TinyModel("Llama"),
    "llama-tied": TinyModel("Llama", {"tie_word_embeddings": True}),
    "llama-one-kv-head": TinyModel("Llama", {"num_key_value_heads": 1}),
    "llama-no-gqa": TinyModel("Llama", {"num_key_value_heads": 4}),
    "llama-llama3-rope": TinyModel("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama-linear-rope": TinyModel(
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama-biases": TinyModel("Llama", {"attention_bias": True, "mlp_bias": True}),
    # Long sums, which kernels cut in different ways.
    "llama-wide-mlp": TinyModel("Llama", {"intermediate_size": 2048}),
    "llama-sharded": TinyModel("Llama", max_shard_size="60KB"),
    "mistral-sliding-window": TinyModel("Mistral", {"sliding_window": 9}),
    "qwen2-biases": TinyModel("Qwen2"),
    "qwen3-qk-norm-wide-heads": TinyModel("Qwen3", {"head_dim": 32}),
}


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """The folder of a tiny model by its name in TINY_MODELS."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            _save(TINY_MODELS[name], folders[name])
        return folders[name]

    return make


def _save(tiny: TinyModel, folder: Path) -> None:
    config_class = getattr(transformers, f"{tiny.architecture}Config")
    model_class = getattr(transformers, f"{tiny.architecture}ForCausalLM")
    model = model_class(config_class(**{**_COMMON, **tiny.fields})).float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Large enough that attention is peaked and every bias and norm matters.
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    model.save_pretrained(folder, max_shard_size=tiny.max_shard_size)
