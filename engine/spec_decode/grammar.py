"""Drafts what a request's grammar forces: keys, brackets and quotes of JSON, for example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest


class GrammarProposer:
    """The grammar's forced text; the target may still cut its last token in another way."""

    kind: DraftKind = "grammar"

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        drafts = {}
        for draft_request in wanted:
            grammar = draft_request.request.grammar
            forced = grammar.forced_tokens() if grammar is not None else []
            if forced:
                drafts[draft_request.request.request_id] = tuple(forced[: draft_request.max_tokens])
        return drafts

    def finish(self, request: Request) -> None:
        """Nothing is kept: the state belongs to the request."""
