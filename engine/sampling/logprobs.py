"""Log-probabilities of the target's own distribution, before temperature, penalties and filters."""

from __future__ import annotations

import numpy as np

from engine.messages import TokenLogprobs
from engine.sampling.logits import Logits
from engine.sampling.top_tokens import top_token_ids


def token_logprobs(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """The logprob of `token_id` and the `num_top` largest, ties by id. `logits`: `[vocab_size]`."""
    largest = np.float64(logits.max())
    exponentials = np.subtract(logits, largest, dtype=np.float64)
    log_mass = np.log(np.exp(exponentials, out=exponentials).sum())
    top_ids = _top_ids(logits, num_top)
    wanted = logits[[token_id, *top_ids]].astype(np.float64)
    wanted -= largest
    wanted -= log_mass
    logprob, *top_logprobs = wanted.tolist()
    top = list(zip(top_ids, top_logprobs, strict=True))
    return TokenLogprobs(token_id, logprob, top, _rank(logits, token_id, top_ids))


def _rank(logits: Logits, token_id: int, top_ids: list[int]) -> int:
    """1 for the most likely token; ties by id."""
    if token_id in top_ids:
        return 1 + top_ids.index(token_id)
    logit = logits[token_id]
    num_larger = np.count_nonzero(logits > logit)
    return 1 + int(num_larger + np.count_nonzero(logits[:token_id] == logit))


def _top_ids(logits: Logits, num_top: int) -> list[int]:
    if num_top == 0:
        return []
    token_ids = top_token_ids(logits, num_top)
    order = np.argsort(-logits[token_ids], kind="stable")
    top_ids: list[int] = token_ids[order][:num_top].tolist()
    return top_ids
