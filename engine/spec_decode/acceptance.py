"""What a proposer's confidence is worth: how often tokens of such a confidence were right.

Learned for each kind of draft, and for each request how much luckier it is than its kind.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.98, 0.99)
_KIND_DECAY = 0.995
_KIND_PRIOR_WEIGHT = 4.0
_REQUEST_DECAY = 0.98
_REQUEST_PRIOR_WEIGHT = 3.0
_MAX_PROB = 0.999


class KindAcceptance:
    """For each level of confidence, the share of tokens that were right; at first, as claimed."""

    def __init__(self) -> None:
        edges = (0.0, *_LEVELS, 1.0)
        claimed = [(low + high) / 2 for low, high in zip(edges, edges[1:], strict=False)]
        self._right = [_KIND_PRIOR_WEIGHT * prob for prob in claimed]
        self._tried = [_KIND_PRIOR_WEIGHT] * len(claimed)

    def prob(self, confidence: float) -> float:
        level = bisect(_LEVELS, confidence)
        return self._right[level] / self._tried[level]

    def observe(self, confidence: float, *, is_right: bool) -> None:
        level = bisect(_LEVELS, confidence)
        self._right[level] = _KIND_DECAY * self._right[level] + is_right
        self._tried[level] = _KIND_DECAY * self._tried[level] + 1


@dataclass(slots=True)
class RequestAcceptance:
    """The odds of a request's tokens to be right, compared with what its kind promises.

    `right` and `wrong` tokens were seen where `expected_right` and `expected_wrong` were expected.
    """

    right: float = 0.0
    wrong: float = 0.0
    expected_right: float = 0.0
    expected_wrong: float = 0.0

    @property
    def odds(self) -> float:
        weight = _REQUEST_PRIOR_WEIGHT
        luck = (self.right + weight) / (self.expected_right + weight)
        return luck * (self.expected_wrong + weight) / (self.wrong + weight)

    def observe(self, prob: float, *, is_right: bool) -> None:
        self.right += is_right
        self.wrong += not is_right
        self.expected_right += prob
        self.expected_wrong += 1 - prob

    def fade(self) -> None:
        """Once for each step: what a request did long ago says little."""
        self.right *= _REQUEST_DECAY
        self.wrong *= _REQUEST_DECAY
        self.expected_right *= _REQUEST_DECAY
        self.expected_wrong *= _REQUEST_DECAY


def survival_probs(
    confidences: Sequence[float], kind: KindAcceptance, request: RequestAcceptance
) -> list[float]:
    """How likely each token is reached and right: the product of the probabilities so far."""
    odds, survival, survivals = request.odds, 1.0, []
    for confidence in confidences:
        prob = kind.prob(confidence)
        survival *= min(prob * odds / (1 - prob + prob * odds), _MAX_PROB)
        survivals.append(survival)
    return survivals
