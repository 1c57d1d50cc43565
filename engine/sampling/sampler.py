"""The choice of one token from one position's processed logits.

Greedy is the first index of the largest logit. Otherwise `argmax(logits / temperature + noise)`: by
the Gumbel-max trick an exact draw from the softmax, made with noise that only the seed, the choice
and the position decide. So the same position gets the same token whoever asks, draft or target.
"""

from __future__ import annotations

import numpy as np

from engine.grammar.state import GrammarState
from engine.messages import SamplingParams
from engine.sampling.candidates import Candidates, filtered_candidates
from engine.sampling.logits import Logits, changes_logits, process_logits
from engine.sampling.noise import MAX_QUIET_NOISE, PositionNoise
from engine.sampling.tempered_logits import TemperedLogits
from engine.sampling.token_history import TokenHistory

GREEDY_BELOW = 1e-5


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def is_argmax(params: SamplingParams, history: TokenHistory, grammar: GrammarState | None) -> bool:
    """Whether the choice is just the largest logit, here and in the rest of the output."""
    return grammar is None and is_greedy(params) and not changes_logits(params, history)


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
    mask = None if grammar is None else grammar.token_mask()
    if mask is not None and is_greedy(params) and not changes_logits(params, history):
        best = int(logits.argmax())
        is_ignored = params.ignore_eos and best in eos_token_ids
        if best in mask and logits[best] > -np.inf and not is_ignored:
            return best
    processed = process_logits(logits, params, history, eos_token_ids, mask)
    if processed is not logits and processed.max() == -np.inf:
        return None
    return sample(processed, params, position)


def sample(logits: Logits, params: SamplingParams, position: int) -> int:
    """The token at `position`, counted from the first prompt token. `logits` is `[vocab_size]`."""
    if is_greedy(params):
        return int(logits.argmax())
    tempered = TemperedLogits(_without_nan(logits), params.temperature)
    noise = PositionNoise(seed=params.seed, choice_index=params.choice_index, position=position)
    candidates = filtered_candidates(tempered, params)
    if candidates is None:
        candidates = _possible_winners(tempered, noise)
    totals = candidates.scores + noise.of(candidates.token_ids)
    return int(candidates.token_ids[totals.argmax()])


def _without_nan(logits: Logits) -> Logits:
    """What is no number is never sampled. Raises ValueError where that leaves nothing."""
    largest = logits.max()
    if np.isnan(largest):
        return _without_nan(np.where(np.isnan(logits), np.float32(-np.inf), logits))
    if largest == -np.inf:
        raise ValueError("no token is possible")
    return logits


def _possible_winners(tempered: TemperedLogits, noise: PositionNoise) -> Candidates:
    """The few tokens of which one has the largest score + noise, of the whole vocabulary.

    Only some tokens are loud. The best total among them and the likeliest token is to be reached,
    and a quiet one can do that only if its score is less than its largest possible noise below.

    Example: scores `0 -3 -9 -20`, of which the last is loud, with a noise of 9. With a noise of 0.5
    for the likeliest, 0.5 is to be reached. The second could, with 3.5; the third could not.
    """
    possible = noise.loud(tempered.logits.shape[0])
    possible[tempered.best_token_id] = True
    first = Candidates.of(tempered, np.flatnonzero(possible))
    to_reach = (first.scores + noise.of(first.token_ids)).max()
    possible |= tempered.may_reach(float(to_reach) - MAX_QUIET_NOISE)
    return Candidates.of(tempered, np.flatnonzero(possible))
