"""Drafts from the client's own guess of the output, wherever the output stands in it.

The output is followed token by token. Where it leaves the prediction, the place is lost until the
latest output tokens occur in the prediction again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest, Proposal

_NUM_MATCHING = 3


class PredictionCursor:
    """The place in a prediction that continues the output, if there is one.

    Example: prediction `a b c d e f g h`, output `a b x d e f`: the place is lost at `x`, and found
    again behind `d e f`.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = tuple(prediction)
        self._num_followed = 0
        self._last_place = 0
        self._num_agreeing = 0
        self._is_lost = False
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def follow(self, output: Sequence[int]) -> int | None:
        """The place behind all of `output`, of which what was followed before is a prefix."""
        for num_tokens in range(self._num_followed + 1, len(output) + 1):
            self._step(output[max(0, num_tokens - _NUM_MATCHING) : num_tokens])
        self._num_followed = len(output)
        return None if self._is_lost else self._last_place

    @property
    def num_agreeing(self) -> int:
        """How many of the latest output tokens stand before the place as well."""
        return self._num_agreeing

    def _step(self, latest: Sequence[int]) -> None:
        place = self._last_place
        goes_on = place < len(self._prediction) and self._prediction[place] == latest[-1]
        if goes_on and not self._is_lost:
            self._last_place += 1
            self._num_agreeing += 1
            return
        found = self._find(tuple(latest))
        self._is_lost = found is None
        if found is not None:
            self._last_place = found
            self._num_agreeing = _NUM_MATCHING

    def _find(self, latest: tuple[int, ...]) -> int | None:
        """The next place behind the last one where `latest` ends, else the first of all."""
        if not self._ends:
            self._index()
        ends = self._ends.get(latest)
        if ends is None:
            return None
        following = bisect_left(ends, self._last_place)
        return ends[following] if following < len(ends) else ends[0]

    def _index(self) -> None:
        for end in range(_NUM_MATCHING, len(self._prediction) + 1):
            self._ends.setdefault(self._prediction[end - _NUM_MATCHING : end], []).append(end)


class PredictionProposer:
    """One cursor for each running request that came with a prediction."""

    kind: DraftKind = "prediction"

    def __init__(self) -> None:
        self._cursors: dict[str, PredictionCursor] = {}

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        proposals = {d.request.request_id: self._propose(d) for d in wanted}
        return {request_id: p for request_id, p in proposals.items() if p is not None}

    def finish(self, request: Request) -> None:
        self._cursors.pop(request.request_id, None)

    def _propose(self, wanted: DraftRequest) -> Proposal | None:
        request = wanted.request
        if not request.prediction_token_ids:
            return None
        cursor = self._cursors.get(request.request_id)
        if cursor is None:
            cursor = PredictionCursor(request.prediction_token_ids)
            self._cursors[request.request_id] = cursor
        place = cursor.follow(request.token_ids[request.num_prompt_tokens :])
        if place is None or place == len(request.prediction_token_ids):
            return None
        token_ids = request.prediction_token_ids[place : place + wanted.max_tokens]
        lengths = range(cursor.num_agreeing + 1, cursor.num_agreeing + 1 + len(token_ids))
        return Proposal(token_ids, tuple(1 - 1 / (1 + length) ** 2 for length in lengths))
