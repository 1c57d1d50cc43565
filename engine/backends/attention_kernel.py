"""One call of PyTorch's CPU attention kernel, with its mask. It does not know slots or requests."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attend(
    query: torch.Tensor,  # [num_rows, width, group_size, num_kv_heads, head_dim]
    keys: torch.Tensor,  # [num_rows, kv_length, num_kv_heads, head_dim]
    values: torch.Tensor,  # [num_rows, kv_length, num_kv_heads, head_dim]
    mask: torch.Tensor,  # [num_rows, 1, padded width * group_size, kv_length]
) -> torch.Tensor:  # [num_rows, width, group_size * num_kv_heads * head_dim]
    """Softmax attention; the queries that share a KV head are folded into its query positions.

    The query is padded where the mask is made for more positions.
    """
    return attend_with_logsumexp(query, keys, values, mask)[0]


def attend_with_logsumexp(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `attend` gives, and in float32 `[num_rows, width, group_size * num_kv_heads]`."""
    _, width, group_size, _, _ = query.shape
    num_missing = mask.shape[2] // group_size - width
    if num_missing:
        query = F.pad(query, (0, 0) * 3 + (0, num_missing))
    output: torch.Tensor  # [num_rows, num_kv_heads, padded width * group_size, head_dim]
    logsumexp: torch.Tensor  # [num_rows, num_kv_heads, padded width * group_size]
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.flatten(1, 2).transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
    )
    return _by_position(output, width, group_size), _by_position(logsumexp, width, group_size)


def _by_position(x: torch.Tensor, width: int, group_size: int) -> torch.Tensor:
    """`[num_rows, num_kv_heads, padded width * group_size, ...]` to `[num_rows, width, all]`."""
    positions = x.transpose(1, 2)[:, : width * group_size]
    by_position: torch.Tensor = positions.unflatten(1, (width, group_size)).flatten(2)
    return by_position


def causal_mask(
    start_positions: tuple[int, ...],
    *,
    width: int,
    padded_width: int,
    kv_length: int,
    group_size: int,
    sliding_window: int | None,
    dtype: torch.dtype,
) -> torch.Tensor:  # [num_rows, 1, padded_width * group_size, kv_length]
    """0 where a query position may look, -inf elsewhere; padding repeats the last position."""
    steps = torch.arange(padded_width).clamp(max=width - 1)
    positions = (torch.tensor(start_positions)[:, None] + steps)[..., None]
    kv_positions = torch.arange(kv_length)
    hidden = kv_positions > positions  # [num_rows, padded_width, kv_length]
    if sliding_window is not None:
        hidden |= kv_positions <= positions - sliding_window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return mask.repeat_interleave(group_size, dim=1).unsqueeze(1)
