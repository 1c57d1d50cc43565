"""Chat on the real default model, through the real `openai` client."""

from __future__ import annotations

import httpx
import pytest
from conftest import Server
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "Write a haiku about the sea, then explain it."}]
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture
def api(server: Server) -> OpenAI:
    return server.client()


def ask(api: OpenAI, **fields):
    fields = {"messages": QUESTION, "temperature": 0, "max_completion_tokens": 48, **fields}
    return api.chat.completions.create(model=MODEL, **fields)


def test_the_prompt_is_what_the_models_template_says(server):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    token_ids = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": token_ids}).json()["prompt"]
    assert text == PROMPT


def test_a_chat_completion_is_the_completion_of_its_prompt(server, api):
    message = ask(api, messages=[{"role": "user", "content": "Hi"}]).choices[0].message
    completion = server.complete(PROMPT, max_tokens=48)
    assert message.content == completion["choices"][0]["text"]
    assert message.content


@pytest.mark.parametrize("fields", [{}, {"temperature": 1, "seed": 7, "n": 2}], ids=str)
def test_a_stream_is_the_whole_answer_in_pieces(api, fields):
    whole = ask(api, logprobs=True, top_logprobs=2, **fields)
    texts = [""] * len(whole.choices)
    tokens: list[list] = [[] for _ in whole.choices]
    reasons = [None] * len(whole.choices)
    for chunk in ask(api, logprobs=True, top_logprobs=2, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    # The logprobs of a drafted and of an undrafted token are the same floats.
    assert tokens == [choice.logprobs.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


@pytest.mark.parametrize("temperature", [0, 1])
def test_speculation_does_not_change_the_answer(api, temperature):
    messages = [{"role": "user", "content": "Repeat: one two three one two three one two three"}]
    fields = {"messages": messages, "temperature": temperature, "seed": 3, "logprobs": True}
    off = ask(api, extra_body={"speculative": False}, **fields)
    on = ask(api, extra_body={"speculative": {"num_speculative_tokens": 7}}, **fields)
    assert on.choices == off.choices
    assert off.metrics["speculative_decoding"]["num_draft_tokens"] == 0
    assert on.metrics["speculative_decoding"]["num_draft_tokens"] > 0


def test_an_answer_can_be_continued_where_it_was_cut(api):
    whole = ask(api, max_completion_tokens=24).choices[0].message.content
    first = ask(api, max_completion_tokens=8).choices[0].message
    assert whole.startswith(first.content)
    rest = ask(
        api,
        messages=[*QUESTION, {"role": "assistant", "content": first.content}],
        max_completion_tokens=16,
        extra_body={"continue_final_message": True},
    )
    assert first.content + rest.choices[0].message.content == whole


def test_a_conversation_goes_on_with_the_message_that_was_got(api):
    first = ask(api).choices[0].message
    later = [*QUESTION, first, {"role": "user", "content": "Thanks!"}]
    assert ask(api, messages=later).choices[0].message.role == "assistant"
    assert ask(api, messages=[*QUESTION, first.model_dump(), later[-1]]).choices


async def test_the_asynchronous_client_reads_the_same(server, api):
    expected = ask(api).choices[0].message.content
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        fields = {"messages": QUESTION, "temperature": 0, "max_completion_tokens": 48}
        stream = await client.chat.completions.create(model=MODEL, stream=True, **fields)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == expected


class Person(BaseModel):
    name: str
    age: int


# The client warns of its own class when it sends it back.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_can_be_parsed_into_a_model(api, streamed):
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tom is 31 years old. Say it as JSON."}],
        "response_format": Person,
        "temperature": 0,
        "max_completion_tokens": 64,
    }
    if streamed:
        with api.chat.completions.stream(**fields) as stream:
            answer = stream.get_final_completion()
    else:
        answer = api.chat.completions.parse(**fields)
    assert isinstance(answer.choices[0].message.parsed, Person)
    later = [*fields["messages"], answer.choices[0].message, {"role": "user", "content": "OK"}]
    assert ask(api, messages=later).choices[0].message.content is not None
