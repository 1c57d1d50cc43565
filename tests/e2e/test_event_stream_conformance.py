"""Real streams in the hands of other people's parsers, however the network cuts them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import httpx
import httpx_sse
import pytest

from tests.e2e.conftest import Server


class Pieces(httpx.SyncByteStream):
    """A response body that arrives as it was cut."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


@pytest.fixture(scope="module")
def recorded(server: Server) -> bytes:
    """A stream of several scripts, with a comment as a silent engine causes it."""
    body = {
        "prompt": "😀 你好 😀 你好 😀 你好 naïve",
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).content
    first, rest = content.split(b"\n\n", 1)
    return first + b"\n\n: keep-alive\n\n" + rest


def parsed(pieces: Iterable[bytes]) -> list[str]:
    headers = {"Content-Type": "text/event-stream; charset=utf-8"}
    response = httpx.Response(200, headers=headers, stream=Pieces(pieces))
    return [event.data for event in httpx_sse.EventSource(response).iter_sse() if event.data]


def test_a_stream_is_read_alike_wherever_it_is_cut(recorded):
    whole = parsed([recorded])
    assert whole[-1] == "[DONE]"
    assert not "".join(json.loads(data)["choices"][0]["text"] for data in whole[:-2]).isascii()
    for cut in range(1, len(recorded)):
        assert parsed([recorded[:cut], recorded[cut:]]) == whole


def test_a_stream_is_read_alike_byte_by_byte(recorded):
    pieces = [recorded[i : i + 1] for i in range(len(recorded))]
    assert parsed(pieces) == parsed([recorded])


def test_events_are_separated_by_plain_line_feeds(recorded):
    """vLLM's benchmark splits there, and knows no other lines than data."""
    *events, end = recorded.decode().split("\n\n")
    assert end == ""
    assert "\r" not in recorded.decode()
    assert all(event.startswith(("data: ", ":")) and "\n" not in event for event in events)
