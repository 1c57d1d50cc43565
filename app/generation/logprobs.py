"""One token's log-probabilities, and the forms in which clients get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.api.schemas import Logprobs, PromptLogprob, PromptLogprobs
from engine.messages import TokenLogprobs

# What stands for minus infinity, which JSON has no word for.
MIN_LOGPROB = -9999.0

TokenName = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """`text_offset` is the character of the returned text in which the token begins.

    A prompt's first token follows nothing: it has no logprob. `top` is sorted from the most likely
    down, and need not hold the token itself.
    """

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    text_offset: int


def logprob_entry(logprobs: TokenLogprobs, *, num_top: int, text_offset: int) -> LogprobEntry:
    top = [(token_id, finite(value)) for token_id, value in logprobs.top[:num_top]]
    return LogprobEntry(logprobs.token_id, finite(logprobs.logprob), top, text_offset)


def logprobs_arrays(entries: Sequence[LogprobEntry], name: TokenName) -> Logprobs:
    return {
        "tokens": [name(entry.token_id) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_by_name(entry, name) for entry in entries],
        "text_offset": [entry.text_offset for entry in entries],
    }


def prompt_logprobs(
    found: Sequence[TokenLogprobs], num_top: int, name: TokenName
) -> PromptLogprobs:
    """One entry per prompt token, of which the first is None: the token's own, and the top ones."""
    return [None, *(_by_token_id(each, num_top, name) for each in found)]


def token_id_name(token_id: int) -> str:
    """What `return_tokens_as_token_ids` puts in place of a token's text."""
    return f"token_id:{token_id}"


def finite(logprob: float) -> float:
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB


def _by_name(entry: LogprobEntry, name: TokenName) -> dict[str, float] | None:
    """Of tokens that look the same the most likely is kept, but the token's own above all."""
    if entry.logprob is None:
        return None
    by_name = {name(token_id): value for token_id, value in reversed(entry.top)}
    return dict(reversed(by_name.items())) | {name(entry.token_id): entry.logprob}


def _by_token_id(
    logprobs: TokenLogprobs, num_top: int, name: TokenName
) -> dict[str, PromptLogprob]:
    own = (logprobs.rank, (logprobs.token_id, logprobs.logprob))
    return {
        str(token_id): {"logprob": finite(value), "rank": rank, "decoded_token": name(token_id)}
        for rank, (token_id, value) in [own, *enumerate(logprobs.top[:num_top], 1)]
    }
