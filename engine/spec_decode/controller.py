"""How long drafts should be: the lengths with the most expected tokens per second in each step.

It knows how likely each proposed token is accepted and what a step costs by its number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.acceptance import KindAcceptance, RequestAcceptance, survival_probs
from engine.spec_decode.proposer import Proposal
from engine.spec_decode.step_cost import StepCost

# What a draft model claims of each of its tokens; what that is worth is learned.
MODEL_CONFIDENCE = 0.75
# Proposals take time as well, and many rows leave no room for long drafts.
_MAX_PROPOSED_TOKENS = 256
# The share of the time that may go into asking a draft model which does not seem to pay.
_EXPLORATION_SHARE = 0.01
_EXPLORATION_LENGTH = 2

# For each request, how likely each token of its draft is reached and accepted.
Survivals = Mapping[str, Sequence[float]]


@dataclass(slots=True)
class _RequestState:
    acceptances: dict[DraftKind, RequestAcceptance] = field(default_factory=dict)
    num_steps_without_model: int = 0


class DraftLengthController:
    """Cuts what was proposed to what pays.

    Example: one row, a proposal whose tokens survive with 0.8, 0.6 and 0.1, and steps of 1 to 4
    tokens that take 10, 11, 12 and 13 ms: 1, 1.8, 2.4 and 2.5 tokens are expected, so the best is
    a draft of 2, with 2.4 tokens in 12 ms.
    """

    def __init__(self, *, num_speculative_tokens: int) -> None:
        self.cost = StepCost()
        self._max_length = num_speculative_tokens
        self._kinds: dict[DraftKind, KindAcceptance] = {}
        self._states: dict[str, _RequestState] = {}
        self._exploration_seconds = 0.0

    def max_draft_tokens(self, request: Request, *, num_rows: int) -> int:
        """The longest draft that a request may have, beside others in a step of `num_rows`."""
        chosen = request.num_speculative_tokens
        wanted = max(1, _MAX_PROPOSED_TOKENS // num_rows) if chosen is None else chosen
        return max(0, min(request.max_draft_tokens, self._max_length, wanted))

    def survivals(self, request: Request, kind: DraftKind, proposal: Proposal) -> list[float]:
        """How likely each token of a proposal is reached and accepted."""
        return survival_probs(
            proposal.confidences, self._kind(kind), self._acceptance(request, kind)
        )

    def lengths(
        self,
        requests: Sequence[Request],
        survivals: Survivals,
        *,
        seconds_per_token: Mapping[str, float] | None = None,
    ) -> dict[str, int]:
        """The draft length of each request that has `survivals`, best for the step as a whole.

        Tokens are taken in the order of their survival. A pinned request keeps all of its tokens.
        Those of the requests in `seconds_per_token` still have to be drafted, at that price.
        """
        prices = seconds_per_token or {}
        lengths = dict.fromkeys(survivals, 0)
        for request in requests:
            if request.num_speculative_tokens is not None and request.request_id in lengths:
                lengths[request.request_id] = len(survivals[request.request_id])
        num_tokens = len(requests) + sum(lengths.values())
        num_emitted = len(requests) + sum(sum(survivals[name]) for name in lengths if lengths[name])
        candidates = [
            (prob, name, prices.get(name, 0.0))
            for name in survivals
            if not lengths[name]
            for prob in survivals[name]
        ]
        candidates.sort(key=itemgetter(0), reverse=True)
        num_taken = self._num_worthwhile(
            candidates, num_rows=len(requests), num_tokens=num_tokens, num_emitted=num_emitted
        )
        for _, name, _ in candidates[:num_taken]:
            lengths[name] += 1
        return lengths

    def model_lengths(self, requests: Sequence[Request], lookups: Survivals) -> dict[str, int]:
        """How many tokens a draft model should draft for each request, before they are known.

        None for requests whose lookup, with tokens that survive as in `lookups`, is worth more.
        """
        chosen = dict(lookups)
        prices = {}
        for request in requests:
            name = request.request_id
            useful = self.max_draft_tokens(request, num_rows=len(requests))
            claimed = Proposal((), (MODEL_CONFIDENCE,) * useful)
            model = self.survivals(request, "draft_model", claimed)
            if self._is_worth_more(request, model, lookups.get(name, ()), len(requests)):
                chosen[name] = model
                prices[name] = self.cost.seconds_per_draft_token
        lengths = self.lengths(requests, chosen, seconds_per_token=prices)
        drafting = {name: lengths[name] for name in prices if lengths[name]}
        return drafting | self._explore(requests, drafting, lookups)

    def observe(
        self,
        request: Request,
        kind: DraftKind,
        proposal: Proposal,
        emitted_token_ids: Sequence[int],
    ) -> None:
        """Learn from what the target emitted where this was proposed, whether verified or not."""
        of_kind, of_request = self._kind(kind), self._acceptance(request, kind)
        of_request.fade()
        for token_id, confidence, emitted in zip(
            proposal.token_ids, proposal.confidences, emitted_token_ids, strict=False
        ):
            is_right = token_id == emitted
            of_request.observe(of_kind.prob(confidence), is_right=is_right)
            of_kind.observe(confidence, is_right=is_right)
            if not is_right:
                break

    def finish(self, request: Request) -> None:
        self._states.pop(request.request_id, None)

    def _num_worthwhile(
        self,
        candidates: Sequence[tuple[float, str, float]],
        *,
        num_rows: int,
        num_tokens: int,
        num_emitted: float,
    ) -> int:
        """How many of the candidates, added to a step, give the most tokens per second."""
        counts = np.arange(num_tokens, num_tokens + len(candidates) + 1)
        step_seconds = self.cost.seconds(counts, num_rows=num_rows).tolist()
        best, best_rate, drafting = 0, num_emitted / step_seconds[0], 0.0
        for num_added, (prob, _, price) in enumerate(candidates, start=1):
            num_emitted += prob
            drafting += price
            seconds = step_seconds[num_added] + drafting
            if num_emitted > best_rate * seconds:
                best, best_rate = num_added, num_emitted / seconds
        return best

    def _is_worth_more(
        self, request: Request, model: Sequence[float], lookup: Sequence[float], num_rows: int
    ) -> bool:
        """Whether a model's draft gives more tokens per second, if all rows were alike.

        A pinned length is drafted whatever it costs.
        """
        if request.num_speculative_tokens is not None or not lookup:
            return sum(model) > sum(lookup)
        price = self.cost.seconds_per_draft_token
        return self._best_rate(model, num_rows, price) > self._best_rate(lookup, num_rows, 0.0)

    def _best_rate(self, survivals: Sequence[float], num_rows: int, price: float) -> float:
        lengths = np.arange(len(survivals) + 1)
        num_emitted = 1 + np.concatenate(([0.0], np.cumsum(survivals)))
        seconds = self.cost.seconds(num_rows * (1 + lengths), num_rows=num_rows)
        seconds += num_rows * lengths * price
        return float((num_emitted / seconds).max())

    def _explore(
        self, requests: Sequence[Request], lengths: Mapping[str, int], lookups: Survivals
    ) -> dict[str, int]:
        """A short draft now and then, so that a model that was given up gets another chance."""
        num_tokens = len(requests) + sum(lengths.values())
        counts = np.array([num_tokens, num_tokens + _EXPLORATION_LENGTH])
        before, after = self.cost.seconds(counts, num_rows=len(requests))
        price = after - before + _EXPLORATION_LENGTH * self.cost.seconds_per_draft_token
        self._exploration_seconds += _EXPLORATION_SHARE * float(before)
        idle = [r for r in requests if self._may_explore(r, lengths, lookups)]
        if self._exploration_seconds < price or not idle:
            return {}
        self._exploration_seconds = 0.0
        longest = max(idle, key=lambda request: self._state(request).num_steps_without_model)
        self._state(longest).num_steps_without_model = 0
        useful = self.max_draft_tokens(longest, num_rows=len(requests))
        return {longest.request_id: min(useful, _EXPLORATION_LENGTH)} if useful else {}

    def _may_explore(
        self, request: Request, lengths: Mapping[str, int], lookups: Survivals
    ) -> bool:
        self._state(request).num_steps_without_model += 1
        is_idle = not lengths.get(request.request_id) and request.num_speculative_tokens is None
        return is_idle and sum(lookups.get(request.request_id, ())) < 1

    def _kind(self, kind: DraftKind) -> KindAcceptance:
        return self._kinds.setdefault(kind, KindAcceptance())

    def _acceptance(self, request: Request, kind: DraftKind) -> RequestAcceptance:
        return self._state(request).acceptances.setdefault(kind, RequestAcceptance())

    def _state(self, request: Request) -> _RequestState:
        return self._states.setdefault(request.request_id, _RequestState())
