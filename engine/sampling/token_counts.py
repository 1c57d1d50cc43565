"""How often each token has occurred, as arrays that grow with every token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_MIN_CAPACITY = 64


class TokenCounts:
    """Distinct tokens in the order of their first occurrence."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.num_tokens = 0
        self._indices: dict[int, int] = {}
        self._token_ids = np.zeros(_MIN_CAPACITY, np.int64)
        self._counts = np.zeros(_MIN_CAPACITY, np.float32)
        self.add(token_ids)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:  # [number of distinct tokens]
        return self._token_ids[: len(self._indices)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:  # [number of distinct tokens]
        return self._counts[: len(self._indices)]

    def add(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            index = self._indices.setdefault(token_id, len(self._indices))
            if index == self._counts.shape[0]:
                self._token_ids = np.pad(self._token_ids, (0, index))
                self._counts = np.pad(self._counts, (0, index))
            self._token_ids[index] = token_id
            self._counts[index] += 1
            self.num_tokens += 1

    def copy(self) -> TokenCounts:
        copy = TokenCounts()
        copy.num_tokens = self.num_tokens
        copy._indices = dict(self._indices)
        copy._token_ids = self._token_ids.copy()
        copy._counts = self._counts.copy()
        return copy
