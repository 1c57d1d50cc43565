"""Asks the proposers, takes for each request the best guess, and cuts all of them to what pays."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.proposer import Draft, DraftRequest, Proposal, Proposer

# In tokens: what a client or a grammar says is preferred to a lookup that is worth the same.
_MARGIN = 0.5


@dataclass(frozen=True, slots=True)
class _Guess:
    """A proposal, and how likely each of its tokens is reached and accepted."""

    kind: DraftKind
    proposal: Proposal
    survivals: Sequence[float]

    @property
    def num_expected(self) -> float:
        return sum(self.survivals)


class Drafter:
    """One draft per request: lookups are asked first, since they cost nothing, then a draft model.

    All proposals, also those that are not taken, are compared with what the target says: so a kind
    that was given up comes back when it is right again.
    """

    def __init__(self, proposers: Sequence[Proposer], controller: DraftLengthController) -> None:
        self._lookups = [p for p in proposers if p.kind != "draft_model"]
        self._models = [p for p in proposers if p.kind == "draft_model"]
        self._guesses: dict[str, list[_Guess]] = {}
        self.controller = controller

    def draft(self, requests: Sequence[Request]) -> dict[str, Draft]:
        """Drafts by request id; requests without one are left out."""
        self._guesses = {}
        wanted = list(self._wanted(requests))
        for proposer in self._lookups:
            self._ask(proposer, wanted)
        for proposer in self._models:
            self._ask_model(proposer, requests)
        best = self._best_guesses()
        lengths = self.controller.lengths(
            requests, {name: guess.survivals for name, guess in best.items()}
        )
        return {
            name: Draft(guess.proposal.token_ids[: lengths[name]], guess.kind)
            for name, guess in best.items()
            if lengths[name]
        }

    def observe(self, request: Request, emitted_token_ids: Sequence[int]) -> None:
        """What the target emitted for a request in the step that was drafted for."""
        for guess in self._guesses.pop(request.request_id, ()):
            self.controller.observe(request, guess.kind, guess.proposal, emitted_token_ids)

    def finish(self, request: Request) -> None:
        self._guesses.pop(request.request_id, None)
        self.controller.finish(request)
        for proposer in (*self._lookups, *self._models):
            proposer.finish(request)

    def _wanted(self, requests: Sequence[Request]) -> Iterator[DraftRequest]:
        for request in requests:
            max_tokens = self.controller.max_draft_tokens(request, num_rows=len(requests))
            if max_tokens:
                yield DraftRequest(request, max_tokens)

    def _ask(self, proposer: Proposer, wanted: Sequence[DraftRequest]) -> int:
        """Note the guesses; returns their number of tokens."""
        proposals = _cut_to_grammar(proposer.propose(wanted), wanted) if wanted else {}
        for draft_request in wanted:
            request = draft_request.request
            proposal = proposals.get(request.request_id)
            if proposal is not None:
                survivals = self.controller.survivals(request, proposer.kind, proposal)
                guess = _Guess(proposer.kind, proposal, survivals)
                self._guesses.setdefault(request.request_id, []).append(guess)
        return sum(len(proposal.token_ids) for proposal in proposals.values())

    def _ask_model(self, proposer: Proposer, requests: Sequence[Request]) -> None:
        """What a model drafts for a request replaces what lookups found."""
        lookups = {name: guess.survivals for name, guess in self._best_guesses().items()}
        lengths = self.controller.model_lengths(requests, lookups)
        wanted = [
            DraftRequest(r, lengths[r.request_id]) for r in requests if r.request_id in lengths
        ]
        started = time.perf_counter()
        num_tokens = self._ask(proposer, wanted)
        if num_tokens:
            self.controller.cost.observe_drafting(num_tokens, time.perf_counter() - started)

    def _best_guesses(self) -> dict[str, _Guess]:
        return {name: _best(guesses) for name, guesses in self._guesses.items()}


def _best(guesses: Sequence[_Guess]) -> _Guess:
    """The first one, unless one behind it has clearly more expected tokens."""
    best = guesses[0]
    for guess in guesses[1:]:
        if guess.kind == "draft_model" or guess.num_expected > best.num_expected + _MARGIN:
            best = guess
    return best


def _cut_to_grammar(
    proposed: Mapping[str, Proposal], wanted: Sequence[DraftRequest]
) -> Mapping[str, Proposal]:
    """Tokens that a request's grammar will refuse are no draft, nor is what stands behind them."""
    cut = dict(proposed)
    for draft_request in wanted:
        request = draft_request.request
        proposal = cut.get(request.request_id)
        if proposal is None or request.grammar is None:
            continue
        cut[request.request_id] = proposal.cut(request.grammar.num_valid(proposal.token_ids))
    return {request_id: p for request_id, p in cut.items() if p.token_ids}
