"""The real `openai` client, over the application in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI


@pytest.fixture
async def api(app) -> AsyncIterator[AsyncOpenAI]:
    http_client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
    async with AsyncOpenAI(
        base_url="http://tandem/v1", api_key="none", max_retries=0, http_client=http_client
    ) as api:
        yield api


async def test_a_stream_is_the_whole_answer_in_pieces(api):
    whole = await api.completions.create(model="tiny", prompt="Hi", seed=1)
    stream = await api.completions.create(model="tiny", prompt="Hi", seed=1, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


async def test_usage_is_understood(api):
    stream = await api.completions.create(
        model="tiny", prompt="Hi", stream=True, stream_options={"include_usage": True}
    )
    *_, last = [chunk async for chunk in stream]
    assert last.usage.prompt_tokens == 2
    assert last.usage.prompt_tokens_details.cached_tokens == 1


async def test_a_refusal_is_a_bad_request_with_its_field(api):
    with pytest.raises(openai.BadRequestError) as caught:
        await api.completions.create(model="tiny", prompt="Hi", extra_body={"top_k": -3})
    assert caught.value.param == "top_k"


async def test_an_unknown_model_is_not_found(api):
    with pytest.raises(openai.NotFoundError) as caught:
        await api.completions.create(model="other", prompt="Hi")
    assert caught.value.code == "model_not_found"


async def test_the_model_is_listed(api):
    assert [model.id async for model in api.models.list()] == ["tiny"]
