"""Drafts by lookup: what followed the latest tokens before, in this request or in recent others.

No model is run. The ideas are those of prompt lookup (Saxena 2023) and suffix decoding (Oliaro et
al. 2024): places that match longer, and tokens that followed more often, are trusted more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.config import SpeculativeConfig
from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest, Proposal
from engine.spec_decode.suffix_index import SuffixIndex
from engine.spec_decode.suffix_vote import vote

# A long prompt is read over several steps, so that none of them is held up.
_MAX_INDEXED_PER_STEP = 2048
_MIN_SURVIVAL = 0.01


class SuffixProposer:
    """One index over the prompts and outputs of running and recently finished requests.

    Requests of another cache salt are not looked at: the speed would tell what they hold.
    """

    kind: DraftKind = "suffix"

    def __init__(self, config: SpeculativeConfig) -> None:
        self._max_match = config.prompt_lookup_max
        self._index = SuffixIndex(
            min_match=config.prompt_lookup_min,
            max_match=config.prompt_lookup_max,
            max_tokens=config.max_cached_tokens,
        )

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        room = _MAX_INDEXED_PER_STEP
        for draft_request in wanted:
            room -= self._extend(draft_request.request, room)
        proposals = {d.request.request_id: self._propose(d) for d in wanted}
        return {request_id: p for request_id, p in proposals.items() if p.token_ids}

    def finish(self, request: Request) -> None:
        self._extend(request, _MAX_INDEXED_PER_STEP)
        self._index.close(request.request_id)

    def _propose(self, wanted: DraftRequest) -> Proposal:
        request = wanted.request
        matches = self._index.matches(
            request.request_id, request.token_ids, group=request.cache_salt
        )
        return vote(
            request.token_ids,
            matches,
            max_tokens=wanted.max_tokens,
            max_match=self._max_match,
            min_survival=_MIN_SURVIVAL,
        )

    def _extend(self, request: Request, max_new: int) -> int:
        return self._index.extend(
            request.request_id, request.token_ids, group=request.cache_salt, max_new=max_new
        )
