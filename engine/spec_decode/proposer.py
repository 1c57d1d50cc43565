"""What every way of drafting has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.messages import DraftKind
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed as the continuation of a request."""

    token_ids: tuple[int, ...]
    kind: DraftKind


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request that wants a draft of at most `max_tokens`, at least 1."""

    request: Request
    max_tokens: int


class Proposer(Protocol):
    """Guesses. A wrong guess costs time and never changes the text."""

    @property
    def kind(self) -> DraftKind: ...

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        """Drafts by request id; a request for which there is no guess is left out."""
        ...

    def finish(self, request: Request) -> None:
        """The request has left the engine."""
        ...
