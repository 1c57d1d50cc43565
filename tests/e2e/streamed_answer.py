"""A stream of completion chunks, read to its end and put together again.

Knows the form of the events, not what they should say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import httpx

from tests.e2e.conftest import START_SECONDS, Server


@contextmanager
def opened(server: Server, prompt: object, **body: object) -> Iterator[Iterator[str]]:
    """The data of the events of a stream, which ends when the block is left."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 16, **body, "stream": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=START_SECONDS) as response:
        assert response.status_code == 200, response.read()
        yield (line[6:] for line in response.iter_lines() if line.startswith("data: "))


@dataclass(frozen=True)
class StreamedAnswer:
    """All chunks of one answer; the `[DONE]` behind them was there."""

    chunks: list[dict[str, Any]]

    @classmethod
    def read(cls, server: Server, prompt: object, **body: object) -> StreamedAnswer:
        with opened(server, prompt, **body) as events:
            *chunks, last = events
        assert last == "[DONE]"
        return cls([json.loads(chunk) for chunk in chunks])

    @classmethod
    def leave(
        cls, server: Server, num_chunks: int, prompt: object, **body: object
    ) -> StreamedAnswer:
        """Go away after some chunks, of which each has the usage so far."""
        options = {"stream_options": {"continuous_usage_stats": True}}
        with opened(server, prompt, **body, **options) as events:
            return cls([json.loads(chunk) for chunk in islice(events, num_chunks)])

    @property
    def choices(self) -> list[dict[str, Any]]:
        """What the answer without a stream has as its choices."""
        pieces: dict[int, list[dict[str, Any]]] = {}
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                pieces.setdefault(choice["index"], []).append(choice)
        return [reduce(joined, pieces[index]) for index in sorted(pieces)]


def joined(first: Any, second: Any) -> Any:
    """Texts, lists and objects are concatenated; of other things the later one counts."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            name: joined(first.get(name), second.get(name)) for name in first.keys() | second.keys()
        }
    if second is None or (isinstance(first, int) and first == second):
        return first
    if isinstance(first, (str, list)):
        return first + second
    return second
