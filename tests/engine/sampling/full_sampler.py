"""Sampling and log-probabilities by their definitions, over the whole vocabulary."""

from __future__ import annotations

import numpy as np

from engine.messages import SamplingParams, TokenLogprobs
from engine.sampling.noise import PositionNoise


def full_sample(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    token_ids, scores = full_candidates(logits, params)
    noise = PositionNoise(seed=params.seed, choice_index=params.choice_index, position=position)
    return int(token_ids[(scores + noise.of(token_ids)).argmax()])


def full_candidates(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    keep = logits > -np.inf
    if 0 < params.top_k < logits.shape[0]:
        keep &= logits >= np.sort(logits)[-params.top_k]
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


def _top_p_threshold(scores: np.ndarray, top_p: float) -> float:
    wanted = top_p * np.exp(scores).sum()
    descending = np.sort(scores)[::-1]
    index = int(np.searchsorted(np.exp(descending).cumsum(), wanted))
    return float(descending[min(index, len(descending) - 1)])


def full_logprobs(logits: np.ndarray, token_id: int, num_top: int) -> TokenLogprobs:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    order = np.argsort(-logits, kind="stable")
    top = [(int(i), float(scores[i])) for i in order[:num_top]]
    rank = 1 + int(np.flatnonzero(order == token_id)[0])
    return TokenLogprobs(token_id, float(scores[token_id]), top, rank)
