"""What changes a position's logits before the choice: penalties, bias, forbidden tokens.

Each position is processed with the history of exactly the tokens before it, so a speculated
position is treated as it would be without speculation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.grammar.token_mask import TokenMask
from engine.messages import SamplingParams
from engine.sampling.token_history import TokenHistory

Logits = npt.NDArray[np.float32]


def process_logits(
    logits: Logits,  # [vocab_size]
    params: SamplingParams,
    history: TokenHistory,
    eos_token_ids: tuple[int, ...],
    mask: TokenMask | None = None,
) -> Logits:
    """The logits to choose from; the input is not changed, and is returned if nothing applies.

    What is forbidden is -inf, which may be everything. `mask` is what a grammar allows.
    """
    if mask is None and not changes_logits(params, history):
        return logits
    logits = logits.copy()
    _apply_penalties(logits, params, history)
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += np.float32(bias)
    _forbid(logits, params, history)
    if history.num_output_tokens < params.min_tokens:
        logits[[*eos_token_ids, *params.stop_token_ids]] = -np.inf
    if mask is not None:
        mask.forbid_others(logits)
        if params.ignore_eos:
            logits[list(eos_token_ids)] = -np.inf
    return logits


def changes_logits(params: SamplingParams, history: TokenHistory) -> bool:
    """Whether anything but a grammar does; what does not now does not later in the output."""
    return bool(
        params.logit_bias
        or params.bad_words
        or params.allowed_token_ids is not None
        or history.num_output_tokens < params.min_tokens
        or params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
    )


def _forbid(logits: Logits, params: SamplingParams, history: TokenHistory) -> None:
    """All but the allowed tokens, and each bad word's last token where the others stand before."""
    if params.allowed_token_ids is not None:
        kept = logits[params.allowed_token_ids]
        logits[:] = -np.inf
        logits[params.allowed_token_ids] = kept
    for *beginning, last in params.bad_words:
        if history.ends_with(beginning):
            logits[last] = -np.inf


def _apply_penalties(logits: Logits, params: SamplingParams, history: TokenHistory) -> None:
    """Repetition over prompt and output (CTRL, Keskar et al. 2019); frequency and presence over
    output only (OpenAI)."""
    if params.repetition_penalty != 1.0:
        seen = history.seen()
        penalty = np.float32(params.repetition_penalty)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        token_ids, counts = history.output_counts()
        frequency = np.float32(params.frequency_penalty)
        logits[token_ids] -= frequency * counts + np.float32(params.presence_penalty)
