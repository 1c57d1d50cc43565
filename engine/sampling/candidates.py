"""The tokens that top_k, top_p and min_p leave to choose from.

Each filter is a threshold, so that tokens of equal logit stay or go together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.messages import SamplingParams
from engine.sampling.tempered_logits import MASS_ERROR, Scores, TemperedLogits
from engine.sampling.top_tokens import TokenIds, top_token_ids


@dataclass(frozen=True, slots=True)
class Candidates:
    """Token ids in ascending order, with their scores."""

    token_ids: TokenIds
    scores: Scores

    @classmethod
    def of(cls, tempered: TemperedLogits, token_ids: TokenIds) -> Candidates:
        return cls(token_ids, tempered.scores(token_ids))

    def at_least(self, score: float) -> Candidates:
        keep: npt.NDArray[np.bool_] = self.scores >= score
        return Candidates(self.token_ids[keep], self.scores[keep])


def filtered_candidates(tempered: TemperedLogits, params: SamplingParams) -> Candidates | None:
    """None where no filter is on: then all tokens are candidates, but for those at -inf."""
    has_top_k = 0 < params.top_k < tempered.logits.shape[0]
    if has_top_k:
        candidates = _top_k(tempered, params.top_k)
        if params.top_p < 1.0:
            candidates = candidates.at_least(_top_p_threshold(candidates.scores, params.top_p))
    elif params.top_p < 1.0:
        candidates = _top_p(tempered, params.top_p)
    elif params.min_p > 0.0:
        reached = tempered.may_reach(math.log(params.min_p))
        candidates = Candidates.of(tempered, np.flatnonzero(reached))
    else:
        return None
    return candidates.at_least(float(np.log(params.min_p))) if params.min_p > 0.0 else candidates


def _top_k(tempered: TemperedLogits, top_k: int) -> Candidates:
    token_ids = top_token_ids(tempered.logits, top_k)
    return Candidates.of(tempered, token_ids[tempered.logits[token_ids] > -np.inf])


def _top_p(tempered: TemperedLogits, top_p: float) -> Candidates:
    """From the head of the distribution alone where that is certain to give the same."""
    mass = tempered.approximate_mass()
    # If every token that is left out has less than its share of what top_p leaves out, the others
    # reach top_p.
    share = 0.9 * (1 - top_p) * mass / tempered.logits.shape[0]
    head = Candidates.of(tempered, np.flatnonzero(tempered.may_reach(math.log(share))))
    threshold = _certain_threshold(head.scores, top_p * mass)
    if threshold is not None:
        return head.at_least(threshold)
    every = Candidates.of(tempered, np.flatnonzero(tempered.logits > -np.inf))
    return every.at_least(_top_p_threshold(every.scores, top_p))


def _certain_threshold(head: Scores, wanted: float) -> float | None:
    """The threshold that the exact mass would give; None where its error could make another.

    The head's lowest score is not certain either: others that are left out may equal it.
    """
    descending = np.sort(head)[::-1]
    cumulative = np.exp(descending).cumsum()
    bounds = (wanted * (1 - MASS_ERROR), wanted * (1 + MASS_ERROR))
    first, last = np.searchsorted(cumulative, bounds)
    if last >= descending.shape[0] or descending[last] == descending[-1]:
        return None
    return float(descending[first]) if descending[first] == descending[last] else None


def _top_p_threshold(scores: Scores, top_p: float) -> float:
    """The lowest score among the fewest most likely tokens whose probabilities sum to `top_p`."""
    descending = np.sort(scores)[::-1]
    cumulative = np.exp(descending).cumsum()
    index = int(np.searchsorted(cumulative, top_p * np.exp(scores).sum()))
    return float(descending[min(index, descending.shape[0] - 1)])
