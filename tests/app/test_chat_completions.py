from __future__ import annotations

import json

import httpx
import pytest
from fake_engine import MAX_MODEL_LEN, says

from app.main import create_app
from app.settings import Settings
from app.text.tokenizer_config import TokenizerConfig

TEXT = " Hello 😀 world"
HI = {"role": "user", "content": "Hi"}
PROMPT = "u:Hi<|end|>a:"


def client_of(app) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://tandem")


async def post(client, **fields):
    body = {"messages": [HI], "seed": 1, **fields}
    return await client.post("/v1/chat/completions", json=body)


async def complete(client, **fields):
    response = await post(client, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def refuse(client, status_code=400, **fields):
    response = await post(client, **fields)
    assert response.status_code == status_code, response.text
    return response.json()["error"]


async def stream(client, **fields):
    response = await post(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def pieces(chunks, index=0):
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def joined(chunks, index=0):
    """One choice, put together from its chunks as a client does it."""
    found = pieces(chunks, index)
    content = "".join(piece["delta"].get("content", "") for piece in found)
    logprobs = [piece["logprobs"]["content"] for piece in found if piece["logprobs"] is not None]
    entries = [entry for each in logprobs for entry in each] if logprobs else None
    return content, entries, found[-1]["finish_reason"]


async def test_a_chat_completion_has_openais_shape(client, byte_tokenizer):
    answer = await complete(client)
    num_prompt_tokens = len(byte_tokenizer.encode(PROMPT))
    num_tokens = len(byte_tokenizer.encode(TEXT)) + 1
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert answer["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"]["prompt_tokens"] == num_prompt_tokens
    assert answer["usage"]["completion_tokens"] == num_tokens
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


async def test_the_model_reads_what_the_template_makes_of_the_messages(
    client, engine, byte_tokenizer
):
    await complete(client, messages=[{"role": "system", "content": "x"}, HI])
    [request] = engine.requests
    assert request.prompt_token_ids == byte_tokenizer.encode("s:x<|end|>u:Hi<|end|>a:")


async def test_the_generation_prompt_can_be_left_out(client, engine, byte_tokenizer):
    await complete(client, add_generation_prompt=False)
    assert engine.requests[0].prompt_token_ids == byte_tokenizer.encode("u:Hi<|end|>")


async def test_the_last_message_can_be_continued(client, engine, byte_tokenizer):
    messages = [HI, {"role": "assistant", "content": "Oh, "}]
    await complete(client, messages=messages, continue_final_message=True)
    assert engine.requests[0].prompt_token_ids == byte_tokenizer.encode("u:Hi<|end|>a:Oh, ")


async def test_a_bos_that_the_template_wrote_is_not_written_again(engine, llama_tokenizer, metrics):
    config = TokenizerConfig({"bos_token": "<s>"}, "{{ bos_token }}{{ messages[0].content }}")
    settings = Settings(served_model_name="tiny")
    app = create_app(settings, engine, llama_tokenizer, metrics, tokenizer_config=config)
    async with client_of(app) as client:
        await complete(client, max_tokens=1)
        await complete(client, max_tokens=1, add_special_tokens=True)
    counts = [request.prompt_token_ids.count(1) for request in engine.requests]
    assert counts == [1, 2]


async def test_the_whole_context_may_be_used(client, engine, byte_tokenizer):
    await complete(client)
    room = MAX_MODEL_LEN - len(byte_tokenizer.encode(PROMPT))
    await complete(client, max_completion_tokens=3)
    assert [r.sampling_params.max_tokens for r in engine.requests] == [room, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 1, "stop": "llo 😀"},
        {"stop": ["😀 w"]},
        {"max_tokens": 3, "logprobs": True},
        {"n": 3, "logprobs": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("tokens_per_step", [1, 2, 4])
async def test_a_stream_says_what_the_whole_answer_says(
    client, engine, byte_tokenizer, fields, tokens_per_step
):
    engine.script = says(byte_tokenizer, TEXT, tokens_per_step=tokens_per_step)
    answer = await complete(client, **fields)
    chunks = await stream(client, **fields)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for choice in answer["choices"]:
        entries = choice["logprobs"] and choice["logprobs"]["content"]
        expected = (choice["message"]["content"], entries, choice["finish_reason"])
        assert joined(chunks, choice["index"]) == expected


async def test_each_choice_of_a_stream_begins_with_its_role_and_ends_with_its_reason(client):
    chunks = await stream(client, n=2)
    for index in (0, 1):
        first, *middle, last = pieces(chunks, index)
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert (last["delta"], last["finish_reason"]) == ({}, "stop")
        assert all(piece["delta"].keys() == {"content"} for piece in middle)
        assert {piece["finish_reason"] for piece in (first, *middle)} == {None}


async def test_usage_comes_last_where_it_is_asked_for(client):
    answer = await complete(client)
    *chunks, last = await stream(client, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], answer["usage"])
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert all("usage" not in chunk for chunk in await stream(client))
    running = await stream(client, stream_options={"continuous_usage_stats": True})
    assert running[-1]["usage"] == answer["usage"]


async def test_logprobs_have_the_bytes_of_each_token(client, byte_tokenizer):
    answer = await complete(client, logprobs=True, top_logprobs=2)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == f"{TEXT}<|end|>".encode()
    shown = [byte_tokenizer.token_text(i) for i in [*byte_tokenizer.encode(TEXT), 0]]
    assert [entry["token"] for entry in entries] == shown
    top = [(top["bytes"], top["logprob"]) for top in entries[3]["top_logprobs"]]
    expected = [(list(byte_tokenizer.token_bytes(i)), p) for i, p in ((1, -0.5), (2, -0.75))]
    assert (entries[3]["logprob"], top) == (-3.0, expected)


async def test_without_top_logprobs_only_the_tokens_own_are_told(client):
    answer = await complete(client, logprobs=True)
    assert {str(e["top_logprobs"]) for e in answer["choices"][0]["logprobs"]["content"]} == {"[]"}
    assert (await complete(client))["choices"][0]["logprobs"] is None


async def test_tokens_can_be_shown_by_their_ids(client, byte_tokenizer):
    answer = await complete(client, logprobs=True, return_tokens_as_token_ids=True)
    shown = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert shown == [f"token_id:{i}" for i in [*byte_tokenizer.encode(TEXT), 0]]


async def test_token_ids_are_returned_where_they_are_asked_for(client, byte_tokenizer):
    prompt, output = byte_tokenizer.encode(PROMPT), [*byte_tokenizer.encode(TEXT), 0]
    answer = await complete(client, return_token_ids=True)
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == (prompt, output)
    chunks = await stream(client, return_token_ids=True)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (
        len(chunks) - 1
    )
    assert [i for piece in pieces(chunks) for i in piece.get("token_ids", [])] == output


async def test_logprobs_of_the_prompt_come_with_the_answer(client, byte_tokenizer):
    answer = await complete(client, prompt_logprobs=1)
    assert len(answer["prompt_logprobs"]) == len(byte_tokenizer.encode(PROMPT))
    first, *others = await stream(client, prompt_logprobs=1)
    assert first["prompt_logprobs"] == answer["prompt_logprobs"]
    assert all("prompt_logprobs" not in chunk for chunk in others)


async def test_choices_share_the_prompt_and_the_seed(client, engine):
    answer = await complete(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    asked = [(r.sampling_params.seed, r.sampling_params.choice_index) for r in engine.requests]
    assert asked == [(1, 0), (1, 1), (1, 2)]
    assert "metrics" not in answer


async def test_messages_that_do_not_fit_are_refused_with_both_numbers(client):
    error = await refuse(client, messages=[{"role": "user", "content": "a b c " * 99}])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(MAX_MODEL_LEN) in error["message"]


async def test_the_last_tokens_of_long_messages_can_be_asked_for(client, engine):
    messages = [{"role": "user", "content": "a b c " * 99}]
    await complete(client, messages=messages, truncate_prompt_tokens=5, max_tokens=1)
    assert len(engine.requests[0].prompt_token_ids) == 5


async def test_an_unknown_model_is_not_found(client):
    assert (await refuse(client, 404, model="other"))["code"] == "model_not_found"


async def test_a_model_without_a_template_says_so(engine, byte_tokenizer, metrics):
    app = create_app(Settings(served_model_name="tiny"), engine, byte_tokenizer, metrics)
    async with client_of(app) as client:
        error = await refuse(client)
        assert (error["code"], error["param"]) == ("no_chat_template", "messages")
        assert (await refuse(client, stream=True))["code"] == "no_chat_template"
    assert engine.requests == []


async def test_the_id_is_the_clients_where_it_gives_one(client):
    assert (await complete(client, request_id="mine-1"))["id"] == "chatcmpl-mine-1"
