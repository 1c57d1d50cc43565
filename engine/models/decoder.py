"""The one model definition: a decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM).

It does not know how a linear layer multiplies or where keys and values live: both are passed in, so
that packed weights or tensor parallelism need no second model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import nn

from engine.models.config import ModelConfig
from engine.models.rotary import RotaryTable


class Linear(Protocol):
    """A linear layer, alone or fused with the operation behind it."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(linear(x))`"""
        ...

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """`linear(x) * factor`"""
        ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`linear(x) + residual`"""
        ...


@runtime_checkable
class RowSource(Protocol):
    """A linear layer that can give its weights back, so that an embedding need not keep them."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """`[num_indices]` to `[num_indices, in_features]`"""
        ...


class Attention(Protocol):
    """Stores the new keys and values of one layer and attends over everything stored so far."""

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,  # [num_tokens, group_size, num_kv_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, group_size * num_kv_heads * head_dim]
        ...


class Weights(Protocol):
    """Tensors by their Hugging Face names."""

    def expect(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor, or an error that names it when it is missing or of another shape."""
        ...


# `norm(x, weight, epsilon)`, over the last dimension.
Norm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, epsilon)


class Decoder(nn.Module):
    """Embedding, layers and head over a flat list of tokens. Which token belongs to which request
    is the attention's business."""

    norm: torch.Tensor
    _embed: Callable[[torch.Tensor], torch.Tensor]

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        linear: LinearFactory,
        dtype: torch.dtype,
        max_positions: int,
        norm: Norm = rms_norm,
    ) -> None:
        super().__init__()
        self.config = config
        self.normalize = norm
        vocab_shape = (config.vocab_size, config.hidden_size)
        embedding = weights.expect("model.embed_tokens.weight", vocab_shape).to(dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(config, index, weights, linear=linear, norm=norm, dtype=dtype)
            for index in range(config.num_layers)
        )
        final_norm = weights.expect("model.norm.weight", (config.hidden_size,))
        self.register_buffer("norm", final_norm.to(dtype, copy=True))
        tied = config.tie_word_embeddings
        head = embedding if tied else weights.expect("lm_head.weight", vocab_shape).to(dtype)
        self.head = linear(head, None)
        if tied and isinstance(self.head, RowSource):
            self._embed = self.head.rows
        else:
            self._embed = partial(F.embedding, weight=embedding.clone())
        self.rotary = RotaryTable(config, max_positions=max_positions, dtype=dtype)

    def forward(
        self,
        input_ids: torch.Tensor,  # [num_tokens]
        positions: torch.Tensor,  # [num_tokens]
        attention: Attention,
        num_layers: int | None = None,
    ) -> torch.Tensor:  # [num_tokens, hidden_size]
        """Hidden states behind the last layer, before the final norm. Few layers serve probing."""
        hidden = self._embed(input_ids)
        cos, sin = self.rotary.at(positions)
        for layer in self.layers[:num_layers]:
            hidden = layer(hidden, cos, sin, attention)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` to float32 `[num_tokens, vocab_size]`."""
        hidden = self.normalize(hidden, self.norm, self.config.rms_norm_eps)
        logits: torch.Tensor = self.head(hidden).float()
        return logits


class DecoderLayer(nn.Module):
    """Attention and SwiGLU blocks with their residuals.

    Query heads are kept in the order (group member, KV head) instead of (KV head, group member):
    what the attention returns for queries that share a KV head then needs no copy.
    """

    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        weights: Weights,
        *,
        linear: LinearFactory,
        norm: Norm,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config = config
        self.index = index
        self._rms_norm = norm
        source = _LayerWeights(config, index, weights, dtype)
        self.qkv = linear(*source.qkv())
        self.output = linear(*source.output())
        self.gate = linear(*source.mlp("gate_proj", config.intermediate_size, config.hidden_size))
        self.up = linear(*source.mlp("up_proj", config.intermediate_size, config.hidden_size))
        self.down = linear(*source.mlp("down_proj", config.hidden_size, config.intermediate_size))
        self.register_buffer("input_norm", source.norm("input_layernorm", config.hidden_size))
        self.register_buffer(
            "post_attention_norm", source.norm("post_attention_layernorm", config.hidden_size)
        )
        if config.qk_norm:
            self.register_buffer("q_norm", source.norm("self_attn.q_norm", config.head_dim))
            self.register_buffer("k_norm", source.norm("self_attn.k_norm", config.head_dim))

    def forward(
        self,
        hidden: torch.Tensor,  # [num_tokens, hidden_size]
        cos: torch.Tensor,  # [num_tokens, 1, head_dim]
        sin: torch.Tensor,  # [num_tokens, 1, head_dim]
        attention: Attention,
    ) -> torch.Tensor:
        config = self.config
        num_tokens = hidden.shape[0]
        normed = self._norm(hidden, self.input_norm)
        qkv = self.qkv(normed).view(num_tokens, -1, config.head_dim)
        num_rotary_heads = config.num_heads + config.num_kv_heads
        qk = self._rotate(qkv[:, :num_rotary_heads], cos, sin)
        query = qk[:, : config.num_heads]
        attended = attention(
            self.index,
            query.view(num_tokens, -1, config.num_kv_heads, config.head_dim),
            qk[:, config.num_heads :],
            qkv[:, num_rotary_heads:],
        )
        hidden = self.output.add(attended, hidden)
        normed = self._norm(hidden, self.post_attention_norm)
        return self.down.add(self.up.mul(normed, self.gate.silu(normed)), hidden)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._rms_norm(x, weight, self.config.rms_norm_eps)

    def _rotate(self, qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotary embedding; the sign of the rotated half is already in `sin`."""
        if self.config.qk_norm:
            num_heads = self.config.num_heads
            q = self._norm(qk[:, :num_heads], self.q_norm)
            qk = torch.cat([q, self._norm(qk[:, num_heads:], self.k_norm)], dim=1)
        return torch.roll(qk, self.config.head_dim // 2, -1).mul_(sin).add_(qk * cos)


class _LayerWeights:
    """Reads one layer's tensors and brings them into the shapes that the layer multiplies with.

    What the layer keeps as it is becomes a copy: a part of the file would keep all of it mapped.
    """

    def __init__(
        self, config: ModelConfig, index: int, weights: Weights, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._prefix = f"model.layers.{index}."
        self._weights = weights
        self._dtype = dtype

    def norm(self, name: str, size: int) -> torch.Tensor:
        return self._tensor(f"{name}.weight", (size,)).clone()

    def qkv(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        config = self._config
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        weights = [
            self._tensor(f"self_attn.{name}.weight", (size, config.hidden_size))
            for name, size in sizes.items()
        ]
        weights[0] = self._group_major(weights[0], dim=0)
        if not config.qkv_bias:
            return torch.cat(weights), None
        biases = [self._tensor(f"self_attn.{n}.bias", (size,)) for n, size in sizes.items()]
        biases[0] = self._group_major(biases[0], dim=0)
        return torch.cat(weights), torch.cat(biases)

    def output(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        config = self._config
        shape = (config.hidden_size, config.num_heads * config.head_dim)
        weight = self._group_major(self._tensor("self_attn.o_proj.weight", shape), dim=1)
        has_bias = config.output_bias
        return weight, self._tensor(
            "self_attn.o_proj.bias", shape[:1]
        ).clone() if has_bias else None

    def mlp(
        self, name: str, out_features: int, in_features: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._tensor(f"mlp.{name}.weight", (out_features, in_features))
        has_bias = self._config.mlp_bias
        bias = self._tensor(f"mlp.{name}.bias", (out_features,)).clone() if has_bias else None
        return weight, bias

    def _group_major(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Reorder the query heads along `dim` from (KV head, group) to (group, KV head)."""
        num_kv_heads, head_dim = self._config.num_kv_heads, self._config.head_dim
        split = x.unflatten(dim, (num_kv_heads, -1, head_dim))
        reordered: torch.Tensor = split.transpose(dim, dim + 1).flatten(dim, dim + 2)
        return reordered.contiguous()

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._weights.expect(self._prefix + name, shape).to(self._dtype)
