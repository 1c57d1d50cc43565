"""Drafts that are right as often as they are told to be, for capacity tests: nothing is guessed.

A prompt's first answer is recorded, and later ones to the same prompt are drafted from it, spoiled
at the rates wanted. The text is the target's own, as with every draft.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest, Proposal


@dataclass(slots=True)
class _Replay:
    """A recorded answer, of which the first `num_followed` tokens are the request's output."""

    answer: Sequence[int]
    num_followed: int = 0

    def follows(self, output: Sequence[int]) -> bool:
        """Whether the output is the answer so far; what was compared before is not again."""
        is_same = self.answer[self.num_followed : len(output)] == output[self.num_followed :]
        self.num_followed = len(output)
        return is_same


class SyntheticProposer:
    """`acceptance_rates[i]` is the share of drafts whose tokens up to position i are accepted.

    There is no draft for a prompt that is new, and none behind the point where an answer leaves the
    recorded one: it had other parameters, or no seed.

    Example: rates 0.8 and 0.4 spoil the first token of one draft in five, and the second token in
    one of two drafts whose first is right.
    """

    kind: DraftKind = "synthetic"

    def __init__(self, acceptance_rates: Sequence[float], *, max_cached_tokens: int) -> None:
        before = [1.0, *acceptance_rates]
        self._probs = tuple(
            rate / last if last else 0.0
            for rate, last in zip(acceptance_rates, before, strict=False)
        )
        self._max_cached_tokens = max_cached_tokens
        self._num_cached_tokens = 0
        self._answers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        self._replays: dict[str, _Replay | None] = {}
        self._chance = random.Random(0)

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        proposals = {d.request.request_id: self._propose(d) for d in wanted}
        return {request_id: p for request_id, p in proposals.items() if p.token_ids}

    def finish(self, request: Request) -> None:
        self._replays.pop(request.request_id, None)
        key, answer = _key(request), request.token_ids[request.num_prompt_tokens :]
        if len(answer) <= len(self._answers.get(key, ())):
            return
        self._forget(key)
        self._answers[key] = answer
        self._num_cached_tokens += len(request.token_ids)
        while self._num_cached_tokens > self._max_cached_tokens:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: tuple[str, tuple[int, ...]]) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._num_cached_tokens -= len(key[1]) + len(answer)

    def _propose(self, wanted: DraftRequest) -> Proposal:
        request = wanted.request
        replay = self._replay(request)
        if replay is None:
            return Proposal((), ())
        if not replay.follows(request.token_ids[request.num_prompt_tokens :]):
            self._replays[request.request_id] = None
            return Proposal((), ())
        length = min(wanted.max_tokens, len(self._probs))
        draft = list(replay.answer[replay.num_followed : replay.num_followed + length])
        return Proposal(tuple(self._spoil(draft)), self._probs[: len(draft)])

    def _replay(self, request: Request) -> _Replay | None:
        if request.request_id not in self._replays:
            answer = self._answers.get(_key(request))
            self._replays[request.request_id] = None if answer is None else _Replay(answer)
        return self._replays[request.request_id]

    def _spoil(self, draft: list[int]) -> list[int]:
        for position, prob in zip(range(len(draft)), self._probs, strict=False):
            if self._chance.random() >= prob:
                draft[position] += -1 if draft[position] else 1
                break
        return draft


def _key(request: Request) -> tuple[str, tuple[int, ...]]:
    return request.cache_salt, tuple(request.token_ids[: request.num_prompt_tokens])
