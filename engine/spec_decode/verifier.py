"""Acceptance by sample-and-match: the target's own token decides at every position.

The target samples with noise keyed by the position, so its path does not depend on the draft; a
draft token is accepted if it equals that sample. What is emitted is the target's path, as far as
this step's logits reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.grammar.state import GrammarError
from engine.messages import FinishReason, TokenLogprobs
from engine.request import Request
from engine.sampling.logits import Logits
from engine.sampling.logprobs import token_logprobs
from engine.sampling.sampler import choose, is_argmax

# Positions whose argmax is taken in one call: more would be wasted where a draft is rejected.
_NUM_AT_ONCE = 4


@dataclass(slots=True)
class VerifiedTokens:
    """The tokens that a step emits for one request.

    `num_accepted_tokens` of `token_ids` were drafted; the one behind them, if there is one, is the
    recovered token after a mismatch or the bonus token after a full acceptance.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None


def sample_next(request: Request, logits: Logits) -> int | None:
    """The target's token behind everything that the request holds; None where all are forbidden.

    `logits` is `[vocab_size]`. Raises GrammarError.
    """
    return choose(
        logits,
        request.sampling_params,
        request.history,
        request.eos_token_ids,
        position=request.num_tokens,
        grammar=request.grammar,
    )


def verify(
    request: Request,
    draft_token_ids: Sequence[int],
    logits: Logits,  # [len(draft_token_ids) + 1, vocab_size]
) -> VerifiedTokens:
    """Sample position by position, append to the request, stop at the first mismatch or at its end.

    Example: draft `a b c`, target's own path `a b x`: emits `a b x`, 2 accepted. Draft `a b`, path
    `a b y`: emits `a b y`, 2 accepted. Draft `a <eos> b`, path `a <eos>`: emits both, 2 accepted.
    """
    verified = VerifiedTokens()
    if request.num_remaining_tokens <= 0:
        verified.finish_reason = "length"
        return verified
    try:
        _follow_target(request, (*draft_token_ids, None), logits, verified)
    except GrammarError as error:
        verified.finish_reason, verified.error = "error", str(error)
    return verified


def _follow_target(
    request: Request,
    expected_token_ids: Sequence[int | None],
    logits: Logits,  # [len(expected_token_ids), vocab_size]
    verified: VerifiedTokens,
) -> None:
    num_logprobs = request.sampling_params.num_logprobs
    target = _target_token_ids(request, logits)
    for position_logits, token_id, expected in zip(logits, target, expected_token_ids, strict=True):
        if token_id is None:
            _end_without_token(request, verified)
            return
        verified.token_ids.append(token_id)
        if num_logprobs is not None:
            verified.logprobs.append(token_logprobs(position_logits, token_id, num_logprobs))
        verified.finish_reason = request.append(token_id)
        if token_id != expected:
            return
        verified.num_accepted_tokens += 1
        if verified.finish_reason is not None:
            return


def _target_token_ids(request: Request, logits: Logits) -> Iterator[int | None]:
    """The target's token at each position, given that the request holds those before it."""
    if is_argmax(request.sampling_params, request.history, request.grammar):
        for start in range(0, logits.shape[0], _NUM_AT_ONCE):
            yield from logits[start : start + _NUM_AT_ONCE].argmax(axis=1).tolist()
    else:
        for position_logits in logits:
            yield sample_next(request, position_logits)


def _end_without_token(request: Request, verified: VerifiedTokens) -> None:
    """A complete grammar leaves only EOS, which may be forbidden: that is a good end."""
    if request.grammar is not None and request.grammar.is_complete:
        verified.finish_reason = "stop"
    else:
        verified.finish_reason = "error"
        verified.error = "The request's parameters together forbid every token."
