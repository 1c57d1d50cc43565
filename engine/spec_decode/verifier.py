"""Acceptance by sample-and-match: the target's own token decides at every position.

The target samples with noise keyed by the position, so its path does not depend on the draft; a
draft token is accepted if it equals that sample. What is emitted is the target's path, as far as
this step's logits reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.grammar.state import GrammarError
from engine.messages import FinishReason, TokenLogprobs
from engine.request import Request
from engine.sampling.logits import Logits
from engine.sampling.logprobs import token_logprobs
from engine.sampling.sampler import choose


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
    for position_logits, draft_token_id in zip(logits, (*draft_token_ids, None), strict=True):
        try:
            token_id = _emit(request, position_logits, verified)
        except GrammarError as error:
            verified.finish_reason, verified.error = "error", str(error)
            break
        if token_id is None or token_id != draft_token_id:
            break
        verified.num_accepted_tokens += 1
        if verified.finish_reason is not None:
            break
    return verified


def _emit(request: Request, logits: Logits, verified: VerifiedTokens) -> int | None:
    """One position: its token, if there is one, goes to the request and to `verified`."""
    token_id = sample_next(request, logits)
    if token_id is None:
        _end_without_token(request, verified)
        return None
    verified.token_ids.append(token_id)
    num_logprobs = request.sampling_params.num_logprobs
    if num_logprobs is not None:
        verified.logprobs.append(token_logprobs(logits, token_id, num_logprobs))
    verified.finish_reason = request.append(token_id)
    return token_id


def _end_without_token(request: Request, verified: VerifiedTokens) -> None:
    """A complete grammar leaves only EOS, which may be forbidden: that is a good end."""
    if request.grammar is not None and request.grammar.is_complete:
        verified.finish_reason = "stop"
    else:
        verified.finish_reason = "error"
        verified.error = "The request's parameters together forbid every token."
