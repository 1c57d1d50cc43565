"""Which tokens a request has seen, as penalties and forbidden sequences need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.sampling.token_counts import TokenCounts


class TokenHistory:
    """Distinct prompt tokens, and the output tokens with their counts.

    Only penalties ask for distinct tokens and counts, so they are brought up to date only then.
    """

    def __init__(
        self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int] = ()
    ) -> None:
        self._prompt_ids = tuple(prompt_token_ids)
        self._output_ids = list(output_token_ids)
        self._seen: TokenCounts | None = None
        self._output: TokenCounts | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self._output_ids)

    def append(self, token_id: int) -> None:
        self._output_ids.append(token_id)

    def ends_with(self, token_ids: Sequence[int]) -> bool:
        """Whether the latest output tokens are these; none at all always are."""
        num_before = self.num_output_tokens - len(token_ids)
        return num_before >= 0 and self._output_ids[num_before:] == list(token_ids)

    def extended(self, token_ids: Iterable[int]) -> TokenHistory:
        """A copy that has also seen `token_ids` as output."""
        copy = TokenHistory(())
        copy._prompt_ids = self._prompt_ids
        copy._output_ids = [*self._output_ids, *token_ids]
        copy._seen = self._seen.copy() if self._seen else None
        copy._output = self._output.copy() if self._output else None
        return copy

    def output_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Distinct output tokens and how often each occurred."""
        self._output = self._output or TokenCounts()
        self._output.add(self._output_ids[self._output.num_tokens :])
        return self._output.token_ids, self._output.counts

    def seen(self) -> npt.NDArray[np.int64]:
        """Distinct tokens of prompt and output."""
        self._seen = self._seen or TokenCounts(self._prompt_ids)
        self._seen.add(self._output_ids[self._seen.num_tokens - len(self._prompt_ids) :])
        return self._seen.token_ids
