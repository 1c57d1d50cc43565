"""The choice of one token from one position's processed logits.

Greedy is the first index of the largest logit. Otherwise `argmax(logits / temperature + noise)`: by
the Gumbel-max trick an exact draw from the softmax, made with noise that only the seed, the choice
and the position decide. So the same position gets the same token whoever asks, draft or target.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.grammar.state import GrammarState
from engine.messages import SamplingParams
from engine.sampling.logits import Logits, process_logits
from engine.sampling.noise import gumbel_noise
from engine.sampling.token_history import TokenHistory

GREEDY_BELOW = 1e-5
_SORTED_HEAD = 1024

Scores = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.int64]


def choose(
    logits: Logits,  # [vocab_size]
    params: SamplingParams,
    history: TokenHistory,
    eos_token_ids: tuple[int, ...],
    *,
    position: int,
    grammar: GrammarState | None = None,
) -> int | None:
    """Process, then choose; None where every token is forbidden. Raises GrammarError."""
    processed = process_logits(logits, params, history, eos_token_ids, grammar)
    if processed is not logits and processed.max() == -np.inf:
        return None
    return sample(processed, params, position)


def sample(logits: Logits, params: SamplingParams, position: int) -> int:
    """The token at `position`, counted from the first prompt token. `logits` is `[vocab_size]`."""
    if params.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    token_ids, scores = _candidates(logits, params)
    noise = gumbel_noise(
        token_ids, seed=params.seed, choice_index=params.choice_index, position=position
    )
    return int(token_ids[(scores + noise).argmax()])


def _candidates(logits: Logits, params: SamplingParams) -> tuple[TokenIds, Scores]:
    """Token ids in ascending order that pass top_k, top_p and min_p, with logits / temperature.

    Each filter is a threshold, so that tokens of equal logit stay or go together.
    """
    keep = logits > -np.inf
    if 0 < params.top_k < logits.shape[0]:
        keep &= logits >= np.partition(logits, -params.top_k)[-params.top_k]
    token_ids = np.flatnonzero(keep)
    scores = logits[token_ids].astype(np.float64)
    scores -= scores.max()
    scores /= params.temperature
    if params.top_p < 1.0:
        keep = scores >= _top_p_threshold(scores, params.top_p)
        token_ids, scores = token_ids[keep], scores[keep]
    if params.min_p > 0.0:
        keep = scores >= np.log(params.min_p)
        token_ids, scores = token_ids[keep], scores[keep]
    return token_ids, scores


def _top_p_threshold(scores: Scores, top_p: float) -> float:
    """The lowest score among the fewest most likely tokens whose probabilities sum to `top_p`."""
    probs = np.exp(scores)
    wanted = top_p * probs.sum()
    if scores.shape[0] > _SORTED_HEAD:
        # A full sort of the vocabulary is slow, and the head nearly always holds enough.
        head = np.partition(scores, -_SORTED_HEAD)[-_SORTED_HEAD:]
        threshold = _threshold_in_sorted(head, wanted)
        if threshold is not None:
            return threshold
    threshold = _threshold_in_sorted(scores, wanted)
    return float(scores.min()) if threshold is None else threshold


def _threshold_in_sorted(scores: Scores, wanted: float) -> float | None:
    descending = np.sort(scores)[::-1]
    cumulative = np.exp(descending).cumsum()
    index = int(np.searchsorted(cumulative, wanted))
    return float(descending[index]) if index < descending.shape[0] else None
