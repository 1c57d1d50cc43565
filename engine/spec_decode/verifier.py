"""Acceptance by sample-and-match: the target's own token decides at every position.

The target samples with noise keyed by the position, so its path does not depend on the draft; a
draft token is accepted if it equals that sample. What is emitted is the target's path, as far as
this step's logits reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import FinishReason, TokenLogprobs
from engine.request import Request
from engine.sampling.logits import Logits, process_logits
from engine.sampling.logprobs import token_logprobs
from engine.sampling.sampler import sample


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


def sample_next(request: Request, logits: Logits) -> int:
    """The target's token behind everything that the request holds. `logits` is `[vocab_size]`."""
    params = request.sampling_params
    processed = process_logits(logits, params, request.history, request.eos_token_ids)
    return sample(processed, params, position=request.num_tokens)


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
    num_logprobs = request.sampling_params.num_logprobs
    for position_logits, draft_token_id in zip(logits, (*draft_token_ids, None), strict=True):
        token_id = sample_next(request, position_logits)
        verified.token_ids.append(token_id)
        if num_logprobs is not None:
            verified.logprobs.append(token_logprobs(position_logits, token_id, num_logprobs))
        verified.finish_reason = request.append(token_id)
        if token_id != draft_token_id:
            break
        verified.num_accepted_tokens += 1
        if verified.finish_reason is not None:
            break
    return verified
