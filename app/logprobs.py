"""One token's log-probabilities, and the arrays in which clients get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.schemas import Logprobs
from app.tokenizer import Tokenizer
from engine.messages import TokenLogprobs

# What stands for minus infinity, which JSON has no word for.
MIN_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """`text_offset` is the character of the returned text in which the token begins."""

    token: str
    logprob: float | None
    top_logprobs: dict[str, float] | None
    text_offset: int


def logprob_entry(
    tokenizer: Tokenizer, logprobs: TokenLogprobs, *, text_offset: int
) -> LogprobEntry:
    token = tokenizer.token_text(logprobs.token_id)
    logprob = _finite(logprobs.logprob)
    top = {tokenizer.token_text(token_id): _finite(value) for token_id, value in logprobs.top}
    return LogprobEntry(token, logprob, top | {token: logprob}, text_offset)


def logprobs_arrays(entries: Sequence[LogprobEntry]) -> Logprobs:
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [entry.top_logprobs for entry in entries],
        "text_offset": [entry.text_offset for entry in entries],
    }


def _finite(logprob: float) -> float:
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB
