"""litellm, for completions and chat."""

from __future__ import annotations

import litellm
import pytest

from tests.clients.conftest import PROMPT

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def options(server) -> dict[str, object]:
    return {"api_base": f"{server.url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 12}


def test_a_completion_is_the_servers_own_text(server, options):
    options |= {"model": f"text-completion-openai/{MODEL}", "prompt": PROMPT}
    text = server.complete(PROMPT, max_tokens=12)["choices"][0]["text"]
    assert litellm.text_completion(**options).choices[0].text == text
    stream = litellm.text_completion(**options, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in stream) == text


def test_usage_of_a_stream_is_understood(server, options):
    """litellm#28735, litellm#8349."""
    options |= {"model": f"text-completion-openai/{MODEL}", "prompt": PROMPT}
    usage = server.complete(PROMPT, max_tokens=12)["usage"]
    stream = litellm.text_completion(**options, stream=True, stream_options={"include_usage": True})
    told = [chunk.usage for chunk in stream if getattr(chunk, "usage", None)]
    assert told[-1].completion_tokens == usage["completion_tokens"]


async def test_a_chat_is_the_servers_own_text(chat, options):
    text = chat["choices"][0]["message"]["content"]
    options |= {"model": f"openai/{MODEL}", "messages": [{"role": "user", "content": "Hi"}]}
    whole = await litellm.acompletion(**options)
    assert whole.choices[0].message.content == text
    stream = await litellm.acompletion(**options, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == text


def test_a_refusal_is_a_bad_request(options):
    options |= {"model": f"text-completion-openai/{MODEL}", "prompt": PROMPT, "temperature": 7}
    with pytest.raises(litellm.BadRequestError):
        litellm.text_completion(**options, num_retries=0)
