"""The `openai` package against a real server: sync, async, streams and raw responses."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

MODEL = "SmolLM2-135M-Instruct"
PROMPT = "Once upon a time, in a town at the edge of the sea,"
ASKED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
ABORTED = 'tandem_requests_total{finish_reason="abort"}'


@pytest.fixture(scope="module")
def text(server) -> str:
    return server.complete(PROMPT, max_tokens=12)["choices"][0]["text"]


def test_the_sync_client_gets_the_text_whole_and_as_a_stream(server, text):
    with server.client() as client:
        whole = client.completions.create(**ASKED)
        stream = client.completions.create(**ASKED, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == text
    assert whole.choices[0].text == text
    assert whole.usage.completion_tokens == 12


async def test_the_async_client_gets_the_text_whole_and_as_a_stream(server, text):
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole, stream = await asyncio.gather(
            client.completions.create(**ASKED), client.completions.create(**ASKED, stream=True)
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == text
    assert whole.choices[0].text == text


def test_a_raw_response_has_the_headers_and_parses(server, text):
    with server.client() as client:
        headers = {"X-Request-Id": "raw-1"}
        raw = client.completions.with_raw_response.create(**ASKED, extra_headers=headers)
        assert raw.headers["X-Request-Id"] == "raw-1"
        assert raw.headers["Content-Type"] == "application/json"
        assert raw.parse().choices[0].text == text


def test_a_closed_stream_ends_the_request(server):
    before = server.metrics()
    with server.client() as client:
        stream = client.completions.create(**ASKED | {"max_tokens": 2000}, stream=True)
        next(stream)
        stream.close()
        after = server.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 1


def test_fields_of_its_own_come_as_an_extra_body(server):
    extra = {"top_k": 5, "min_p": 0.05, "return_token_ids": True, "speculative": False}
    with server.client() as client:
        options = ASKED | {"temperature": 1, "seed": 3}
        answer = client.completions.create(**options, extra_body=extra)
    expected = server.complete(PROMPT, max_tokens=12, temperature=1, seed=3, **extra)
    assert answer.choices[0].model_dump() == expected["choices"][0]


def test_a_mistake_is_told_once_and_not_sent_again(server):
    """vllm#12886 (23): the client sends again what gets a 500."""
    with server.client().with_options(max_retries=2) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**ASKED | {"n": 0})
        assert caught.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(**ASKED | {"model": "another"})
