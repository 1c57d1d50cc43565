"""Drafts by a small model with the target's tokenizer and its own KV slots.

Before it drafts it computes whatever it has not seen of a request: a new prompt, tokens that the
target chose otherwise, the last token of a draft that was accepted whole. All are the same case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.backends.base import Backend, ForwardRow
from engine.grammar.state import GrammarError, GrammarState
from engine.messages import DraftKind
from engine.request import Request
from engine.sampling.logits import Logits
from engine.sampling.sampler import choose
from engine.sampling.token_history import TokenHistory
from engine.slots import common_prefix_length
from engine.spec_decode.controller import MODEL_CONFIDENCE
from engine.spec_decode.proposer import DraftRequest, Proposal


@dataclass(slots=True)
class _Drafting:
    """A draft in the making. `history` is None until a token is drafted."""

    request: Request
    slot_id: int
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    history: TokenHistory | None = None
    grammar: GrammarState | None = None
    is_exhausted: bool = False

    @property
    def is_complete(self) -> bool:
        if self.is_exhausted or len(self.token_ids) >= self.max_tokens:
            return True
        return bool(self.token_ids) and self.request.is_stop_token(self.token_ids[-1])

    @property
    def proposal(self) -> Proposal:
        return Proposal(tuple(self.token_ids), (MODEL_CONFIDENCE,) * len(self.token_ids))

    def append_from(self, logits: Logits) -> None:
        """Draft with the request's own parameters and the noise that the target will use."""
        try:
            token_id = self._choose(logits)
            if token_id is not None and self.grammar is not None:
                self.grammar.append(token_id)
        except GrammarError:
            token_id = None
        if token_id is None:
            self.is_exhausted = True
            return
        self.token_ids.append(token_id)
        self.history = self.request.history.extended(self.token_ids)

    def _choose(self, logits: Logits) -> int | None:
        request = self.request
        return choose(
            logits,
            request.sampling_params,
            self.history or request.history,
            request.eos_token_ids,
            position=request.num_tokens + len(self.token_ids),
            grammar=self.grammar,
        )


class DraftModelProposer:
    """Runs the draft model in the target's slot numbers, all requests in one batch."""

    kind: DraftKind = "draft_model"

    def __init__(self, backend: Backend, *, vocab_size: int, max_num_batched_tokens: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._computed: list[list[int]] = [[] for _ in range(backend.info.num_slots)]
        self._cache_salts = [""] * backend.info.num_slots

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        started = [d for d in map(self._start, wanted) if d is not None]
        drafting = self._catch_up(started)
        finished = []
        while drafting:
            logits = self._forward([self._next_row(d) for d in drafting])
            for row_logits, draft in zip(logits, drafting, strict=True):
                draft.append_from(row_logits)
            finished += [d for d in drafting if d.is_complete]
            drafting = [d for d in drafting if not d.is_complete]
        return {d.request.request_id: d.proposal for d in finished if d.token_ids}

    def finish(self, request: Request) -> None:
        """Nothing to forget: a slot's tokens are compared before they are used."""

    def _start(self, wanted: DraftRequest) -> _Drafting | None:
        request = wanted.request
        assert request.slot_id is not None
        room = self._backend.info.max_model_len - request.num_tokens
        max_tokens = min(wanted.max_tokens, room)
        if max_tokens < 1:
            return None
        computed = self._computed[request.slot_id]
        if self._cache_salts[request.slot_id] != request.cache_salt:
            self._cache_salts[request.slot_id] = request.cache_salt
            computed.clear()
        # The newest token is always computed again: its logits are wanted.
        known = common_prefix_length(computed, request.token_ids)
        del computed[min(known, request.num_tokens - 1) :]
        grammar = request.grammar.copy() if request.grammar is not None else None
        return _Drafting(request, request.slot_id, max_tokens, grammar=grammar)

    def _catch_up(self, started: Sequence[_Drafting]) -> list[_Drafting]:
        """Spend one prefill chunk on a request that is far behind; returns those that can draft."""
        ready = [d for d in started if self._num_unseen(d) <= self._max_num_batched_tokens]
        behind = [d for d in started if self._num_unseen(d) > self._max_num_batched_tokens]
        if behind:
            self._forward([self._row(behind[0], self._max_num_batched_tokens, num_logits=0)])
        return ready

    def _num_unseen(self, drafting: _Drafting) -> int:
        return drafting.request.num_tokens - len(self._computed[drafting.slot_id])

    def _next_row(self, drafting: _Drafting) -> ForwardRow:
        num_tokens = self._num_unseen(drafting) + len(drafting.token_ids)
        return self._row(drafting, num_tokens, num_logits=1)

    def _row(self, drafting: _Drafting, num_tokens: int, *, num_logits: int) -> ForwardRow:
        start = len(self._computed[drafting.slot_id])
        known = drafting.request.token_ids
        unseen = [*known[start:], *drafting.token_ids[max(0, start - len(known)) :]]
        return ForwardRow(drafting.slot_id, start, tuple(unseen[:num_tokens]), num_logits)

    def _forward(self, rows: Sequence[ForwardRow]) -> list[Logits]:
        """One pass; its tokens count as seen. Returns `[target vocab_size]` per wanted position."""
        logits = self._backend.forward(tuple(rows)).numpy()
        for row in rows:
            self._computed[row.slot_id].extend(row.token_ids)
        return [self._fit_vocab(row_logits) for row_logits in logits]

    def _fit_vocab(self, logits: Logits) -> Logits:
        """Equal tokenizers may be padded to different sizes."""
        missing = self._vocab_size - logits.shape[0]
        if missing > 0:
            return np.pad(logits, (0, missing), constant_values=-np.inf)
        return logits[: self._vocab_size]
