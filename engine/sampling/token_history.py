"""Which tokens a request has seen, as penalties and forbidden sequences need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class TokenHistory:
    """Distinct prompt tokens, and the output tokens with their counts."""

    def __init__(
        self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int] = ()
    ) -> None:
        self._prompt_ids = frozenset(prompt_token_ids)
        self._output_ids: list[int] = []
        self._output_counts: dict[int, int] = {}
        for token_id in output_token_ids:
            self.append(token_id)

    @property
    def num_output_tokens(self) -> int:
        return len(self._output_ids)

    def append(self, token_id: int) -> None:
        self._output_ids.append(token_id)
        self._output_counts[token_id] = self._output_counts.get(token_id, 0) + 1

    def ends_with(self, token_ids: Sequence[int]) -> bool:
        """Whether the latest output tokens are these; none at all always are."""
        num_before = self.num_output_tokens - len(token_ids)
        return num_before >= 0 and self._output_ids[num_before:] == list(token_ids)

    def extended(self, token_ids: Iterable[int]) -> TokenHistory:
        """A copy that has also seen `token_ids` as output."""
        copy = TokenHistory(())
        copy._prompt_ids = self._prompt_ids
        copy._output_ids = list(self._output_ids)
        copy._output_counts = dict(self._output_counts)
        for token_id in token_ids:
            copy.append(token_id)
        return copy

    def output_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Distinct output tokens and how often each occurred."""
        num_distinct = len(self._output_counts)
        token_ids = np.fromiter(self._output_counts.keys(), np.int64, num_distinct)
        counts = np.fromiter(self._output_counts.values(), np.float32, num_distinct)
        return token_ids, counts

    def seen(self) -> npt.NDArray[np.int64]:
        """Distinct tokens of prompt and output."""
        seen = self._prompt_ids.union(self._output_counts)
        return np.fromiter(seen, np.int64, len(seen))
