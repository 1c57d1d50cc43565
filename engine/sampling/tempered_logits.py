"""The scores that noise is added to: `(logit - largest logit) / temperature`.

They are computed in float64 for the tokens asked for, since most tokens can be ruled out by their
float32 logits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.sampling.logits import Logits
from engine.sampling.top_tokens import TokenIds

# What float32 may get wrong in a sum of exponentials is below half of it: a score s has a rounding
# error of 2e-7 |s|, and |s| is at most ln(vocab_size) on average over the probabilities.
MASS_ERROR = 1e-5
_ROUNDING = 1e-6
_LOWEST = float(np.finfo(np.float32).min)

Scores = npt.NDArray[np.float64]


class TemperedLogits:
    """One position's logits, of which the largest is no NaN and above -inf."""

    def __init__(self, logits: Logits, temperature: float) -> None:
        self.logits = logits  # [vocab_size]
        self.best_token_id = int(logits.argmax())
        self._largest = float(logits[self.best_token_id])
        self._temperature = temperature

    def scores(self, token_ids: TokenIds) -> Scores:
        scores = self.logits[token_ids].astype(np.float64)
        scores -= self._largest
        scores /= self._temperature
        return scores

    def may_reach(self, score: float) -> npt.NDArray[np.bool_]:  # [vocab_size]
        """All tokens with at least this score, and some that miss it by a rounding error.

        It is a bound for the logits: of two tokens, the one with the larger logit is never missing.
        """
        reach = self._temperature * score
        slack = _ROUNDING * (abs(self._largest) + abs(reach))
        bound = max(self._largest + reach - slack, _LOWEST)
        reached: npt.NDArray[np.bool_] = self.logits >= np.float32(bound)
        return reached

    def approximate_mass(self) -> float:
        """The sum of exp(score) over the vocabulary, with a relative error below `MASS_ERROR`."""
        with np.errstate(over="ignore"):
            scores = self.logits - np.float32(self._largest)
            scores *= np.float32(1 / self._temperature)
        return float(np.exp(scores, out=scores).sum())
