"""The most likely continuation of a text by what followed its latest tokens before, and how likely.

It knows the places where they occurred, not how those were found.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec_decode.proposer import Proposal
from engine.spec_decode.suffix_index import SuffixMatch

# A place in the request's own text tells as much as so many places elsewhere.
_OWN_WEIGHT = 8.0
# Stands against all votes together: one place behind a single equal token is little evidence.
_DOUBT = 3.0 * _OWN_WEIGHT
# Of those that were right so far, the ones that match longest.
_VOTERS_KEPT = 8


def vote(
    token_ids: Sequence[int],
    matches: Sequence[SuffixMatch],
    *,
    max_tokens: int,
    max_match: int,
    min_survival: float,
) -> Proposal:
    """Draft up to `max_tokens`, or until the draft as a whole is less likely than `min_survival`.

    Every place votes for the token behind it, with the square of the length that it matches. Those
    that voted for the winner vote again, one token on; a place in the text itself that comes to
    its end goes on in the draft, so that what repeats is repeated.

    Example: `a b c .. b d .. a b`: behind `a b` came `c` (4 votes), behind `b` alone `d` (1 vote).
    `c` wins with 4 of 5, and only its place is asked what comes behind `c`.
    """
    draft: list[int] = []
    confidences: list[float] = []
    survival, num_known = 1.0, len(token_ids)
    live: Sequence[SuffixMatch] = matches
    while live and len(draft) < max_tokens and survival >= min_survival:
        num_drafted = len(draft)
        votes: dict[int, float] = {}
        voters: dict[int, list[SuffixMatch]] = {}
        for match in live:
            source, end, num_matched, is_own = match
            place = end + num_drafted
            if place < len(source):
                token_id = source[place]
            elif is_own:
                token_id = draft[place - num_known]
            else:
                continue
            weight = min(num_matched + num_drafted, max_match) ** 2 * (_OWN_WEIGHT if is_own else 1)
            if token_id in votes:
                votes[token_id] += weight
                voters[token_id].append(match)
            else:
                votes[token_id] = weight
                voters[token_id] = [match]
        if not votes:
            break
        winner = max(votes, key=votes.__getitem__)
        confidence = votes[winner] / (sum(votes.values()) + _DOUBT)
        draft.append(winner)
        confidences.append(confidence)
        survival *= confidence
        live = voters[winner][:_VOTERS_KEPT]
    return Proposal(tuple(draft), tuple(confidences))
