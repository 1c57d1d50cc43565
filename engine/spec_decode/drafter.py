"""Asks the proposers, in their order of preference, for one draft per request."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
        drafts = {
            request_id: Draft(token_ids, proposer.kind)
            for request_id, token_ids in proposer.propose(wanted).items()
        }
        num_tokens = sum(len(draft.token_ids) for draft in drafts.values())
        if proposer.kind == "draft_model" and num_tokens:
            self.controller.cost.observe_drafting(num_tokens, time.perf_counter() - started)
        return drafts
