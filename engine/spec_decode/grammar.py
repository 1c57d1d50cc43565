"""Drafts what a request's grammar forces: keys, brackets and quotes of JSON, for example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest, Proposal

# The last token may be cut in another way, since the text goes on behind it.
_CONFIDENCE = 0.98
_LAST_CONFIDENCE = 0.6


class GrammarProposer:
    """The grammar's forced text; the target may still cut its last token in another way."""

    kind: DraftKind = "grammar"

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        proposals = {}
        for draft_request in wanted:
            grammar = draft_request.request.grammar
            forced = grammar.forced_tokens() if grammar is not None else []
            if forced:
                confidences = (*[_CONFIDENCE] * (len(forced) - 1), _LAST_CONFIDENCE)
                proposal = Proposal(tuple(forced), confidences).cut(draft_request.max_tokens)
                proposals[draft_request.request.request_id] = proposal
        return proposals

    def finish(self, request: Request) -> None:
        """Nothing is kept: the state belongs to the request."""
