"""langchain-openai, for completions and chat."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.conftest import PROMPT

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def options(server) -> dict[str, object]:
    return {"base_url": f"{server.url}/v1", "api_key": "none", "model": MODEL, "temperature": 0}


def test_a_completion_is_the_servers_own_text(server, options):
    client = OpenAI(**options, max_tokens=12)
    text = server.complete(PROMPT, max_tokens=12)["choices"][0]["text"]
    assert client.invoke(PROMPT) == text
    assert "".join(client.stream(PROMPT)) == text


def test_several_prompts_and_choices_keep_their_order(server, options):
    client = OpenAI(**options | {"temperature": 1}, max_tokens=6, n=2, seed=5)
    answer = server.complete(["a", "b"], max_tokens=6, n=2, temperature=1, seed=5)
    texts = [choice["text"] for choice in answer["choices"]]
    result = client.generate(["a", "b"])
    assert [generation.text for each in result.generations for generation in each] == texts
    assert result.llm_output["token_usage"]["total_tokens"] == answer["usage"]["total_tokens"]


def test_the_best_of_several_is_taken(server, options):
    client = OpenAI(**options | {"temperature": 1}, max_tokens=6, best_of=3, seed=5)
    answer = server.complete("a", max_tokens=6, best_of=3, temperature=1, seed=5)
    assert client.invoke("a") == answer["choices"][0]["text"]


def test_a_bias_may_be_a_fraction(server, options):
    client = OpenAI(**options, max_tokens=6, logit_bias={"260": 7.5})
    answer = server.complete(PROMPT, max_tokens=6, logit_bias={"260": 7.5})
    assert client.invoke(PROMPT) == answer["choices"][0]["text"]


def test_a_chat_is_the_servers_own_text(chat, options):
    client = ChatOpenAI(**options, max_tokens=12)
    text = chat["choices"][0]["message"]["content"]
    whole = client.invoke([HumanMessage("Hi")])
    assert whole.content == text
    assert whole.usage_metadata["output_tokens"] == chat["usage"]["completion_tokens"]
    assert "".join(chunk.content for chunk in client.stream([HumanMessage("Hi")])) == text
