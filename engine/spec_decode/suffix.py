"""Drafts by lookup: what followed the latest tokens before, in this request or in recent others.

No model is run. The idea is that of prompt lookup (Saxena 2023) and suffix decoding (Oliaro et al.
2024): the longer the matching suffix, the longer its continuation is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.config import SpeculativeConfig
from engine.messages import DraftKind
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest
from engine.spec_decode.suffix_index import SuffixIndex


class SuffixProposer:
    """One index over the prompts and outputs of running and recently finished requests.

    Requests of another cache salt are not looked at: the speed would tell what they hold.
    """

    kind: DraftKind = "suffix"

    def __init__(self, config: SpeculativeConfig) -> None:
        self._index = SuffixIndex(
            min_match=config.prompt_lookup_min,
            max_match=config.prompt_lookup_max,
            max_tokens=config.max_cached_tokens,
        )

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        drafts = {}
        for draft_request in wanted:
            token_ids = self._propose(draft_request)
            if token_ids:
                drafts[draft_request.request.request_id] = token_ids
        return drafts

    def finish(self, request: Request) -> None:
        self._extend(request)
        self._index.close(request.request_id)

    def _propose(self, wanted: DraftRequest) -> tuple[int, ...]:
        """A match of n tokens is trusted for n tokens. Where a request repeats itself up to its
        end, the continuation is short, and is repeated in turn."""
        request = wanted.request
        self._extend(request)
        match = self._index.longest_match(request.token_ids, group=request.cache_salt)
        if match is None:
            return ()
        num_tokens = min(wanted.max_tokens, match.num_matched)
        continuation = self._index.continuation(match, num_tokens)
        if match.name == request.request_id:
            continuation *= -(-num_tokens // len(continuation))
        return continuation[:num_tokens]

    def _extend(self, request: Request) -> None:
        self._index.extend(request.request_id, request.token_ids, group=request.cache_salt)
