"""Asks the proposers, in their order of preference, for one draft per request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from engine.request import Request
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.proposer import Draft, DraftRequest, Proposer


class Drafter:
    """The first proposer that has a guess for a request makes its draft."""

    def __init__(self, proposers: Sequence[Proposer], controller: DraftLengthController) -> None:
        self._proposers = proposers
        self.controller = controller

    def draft(self, requests: Sequence[Request]) -> dict[str, Draft]:
        """Drafts by request id; requests without one are left out."""
        drafts: dict[str, Draft] = {}
        for proposer in self._proposers:
            wanted = [
                DraftRequest(request, length)
                for request in requests
                if request.request_id not in drafts
                and (length := self._length(request, proposer, len(requests))) > 0
            ]
            if wanted:
                drafts |= self._ask(proposer, wanted)
        return drafts

    def finish(self, request: Request) -> None:
        self.controller.finish(request)
        for proposer in self._proposers:
            proposer.finish(request)

    def _length(self, request: Request, proposer: Proposer, num_rows: int) -> int:
        return self.controller.max_draft_tokens(request, proposer.kind, num_rows=num_rows)

    def _ask(self, proposer: Proposer, wanted: Sequence[DraftRequest]) -> dict[str, Draft]:
        started = time.perf_counter()
        proposed = _cut_to_grammar(proposer.propose(wanted), wanted)
        drafts = {
            request_id: Draft(token_ids, proposer.kind)
            for request_id, token_ids in proposed.items()
        }
        num_tokens = sum(len(draft.token_ids) for draft in drafts.values())
        if proposer.kind == "draft_model" and num_tokens:
            self.controller.cost.observe_drafting(num_tokens, time.perf_counter() - started)
        return drafts


def _cut_to_grammar(
    proposed: Mapping[str, tuple[int, ...]], wanted: Sequence[DraftRequest]
) -> Mapping[str, tuple[int, ...]]:
    """Tokens that a request's grammar will refuse are no draft, nor is what stands behind them."""
    cut = dict(proposed)
    for draft_request in wanted:
        request = draft_request.request
        token_ids = cut.get(request.request_id)
        if token_ids is None or request.grammar is None:
            continue
        cut[request.request_id] = token_ids[: request.grammar.num_valid(token_ids)]
    return {request_id: token_ids for request_id, token_ids in cut.items() if token_ids}
