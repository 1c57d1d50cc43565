"""Log-probabilities of the target's own distribution, before temperature, penalties and filters."""

from __future__ import annotations

import numpy as np

from engine.messages import TokenLogprobs
from engine.sampling.logits import Logits


def token_logprobs(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """The logprob of `token_id` and the `num_top` largest, ties by id. `logits`: `[vocab_size]`."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    top = [(int(i), float(scores[i])) for i in _top_indices(logits, num_top)]
    return TokenLogprobs(token_id, float(scores[token_id]), top, _rank(logits, token_id))


def _rank(logits: Logits, token_id: int) -> int:
    """1 for the most likely token; ties by id."""
    logit = logits[token_id]
    num_larger = np.count_nonzero(logits > logit)
    return 1 + int(num_larger + np.count_nonzero(logits[:token_id] == logit))


def _top_indices(logits: Logits, num_top: int) -> list[int]:
    if num_top == 0:
        return []
    num_top = min(num_top, logits.shape[0])
    threshold = np.partition(logits, -num_top)[-num_top]
    indices = np.flatnonzero(logits >= threshold)
    order = np.argsort(-logits[indices], kind="stable")
    return [int(i) for i in indices[order][:num_top]]
