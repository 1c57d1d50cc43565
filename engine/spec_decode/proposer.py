"""What every way of drafting has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.messages import DraftKind
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Proposal:
    """A guess of the next tokens.

    A confidence says how likely a token is, given that those before it are right. It need not be
    true, only larger where the token is more likely: the controller learns what it is worth.
    """

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]

    def cut(self, num_tokens: int) -> Proposal:
        return Proposal(self.token_ids[:num_tokens], self.confidences[:num_tokens])


@dataclass(frozen=True, slots=True)
class Draft:
    """The tokens that a step verifies as the continuation of a request."""

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

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        """Guesses by request id; a request for which there is none is left out."""
        ...

    def finish(self, request: Request) -> None:
        """The request has left the engine."""
        ...
