from __future__ import annotations

import asyncio

import httpx
import pytest
from fake_engine import MAX_MODEL_LEN

from app.api.tokenize_request import MAX_NUM_TOKENS, MAX_TEXT_CHARS
from app.errors import EngineStartingError
from app.main import create_app
from app.metrics import Metrics
from app.settings import Settings
from engine.messages import StepStats

HI = {"role": "user", "content": "Hi"}
TEXTS = ["", "Hi", " a  b\n\n", "A\x00B", "\x00", "你好 🇩🇪 語", "x<|end|>y<x y>", "\ufffd"]


async def post(client, path, **body):
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refuse(client, path, status_code=400, **body):
    response = await client.post(path, json=body)
    assert response.status_code == status_code, response.text
    return response.json()["error"]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
async def test_a_text_comes_back_from_its_tokens(client, byte_tokenizer, text):
    """llama.cpp#25543: nothing is lost behind a NUL."""
    answer = await post(client, "/tokenize", prompt=text)
    assert answer == {
        "count": len(byte_tokenizer.encode(text)),
        "max_model_len": MAX_MODEL_LEN,
        "tokens": byte_tokenizer.encode(text),
        "token_strs": None,
    }
    assert await post(client, "/detokenize", tokens=answer["tokens"]) == {"prompt": text}


async def test_the_tokens_are_those_that_a_completion_reads(client, engine):
    answer = await post(client, "/tokenize", prompt="A\x00B")
    await client.post("/v1/completions", json={"prompt": "A\x00B", "max_tokens": 1})
    assert engine.requests[0].prompt_token_ids == answer["tokens"]


async def test_the_tokens_of_messages_are_those_that_a_chat_completion_reads(client, engine):
    messages = [HI, {"role": "assistant", "content": "Oh"}]
    for options in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        answer = await post(client, "/tokenize", messages=messages, **options)
        body = {"messages": messages, "max_tokens": 1, **options}
        await client.post("/v1/chat/completions", json=body)
        assert engine.requests[-1].prompt_token_ids == answer["tokens"]


async def test_special_tokens_are_added_to_a_text_and_not_to_messages(
    engine, llama_tokenizer, metrics
):
    app = create_app(Settings(served_model_name="tiny"), engine, llama_tokenizer, metrics)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        with_bos = await post(client, "/tokenize", prompt="a")
        without = await post(client, "/tokenize", prompt="a", add_special_tokens=False)
    assert with_bos["tokens"] == [1, *without["tokens"]]


async def test_tokens_are_shown_as_in_logprobs(client):
    answer = await post(client, "/tokenize", prompt="A語", return_token_strs=True)
    assert answer["token_strs"] == ["A", "bytes:\\xe8", "bytes:\\xaa", "bytes:\\x9e"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_lone_surrogate_is_refused(client, path):
    """tiktoken#82: in place of a server error, or of a text that is not the client's."""
    response = await client.post(
        path,
        content=b'{"prompt": "x \\ud83d"}',
        headers={"Content-Type": "application/json"},
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_pair_of_surrogates_is_its_character(client, byte_tokenizer):
    response = await client.post(
        "/tokenize",
        content=b'{"prompt": "\\ud83d\\ude00"}',
        headers={"Content-Type": "application/json"},
    )
    assert response.json()["tokens"] == byte_tokenizer.encode("😀")


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": ["a"]}),
        ("messages", {"prompt": "a", "messages": [HI]}),
        ("messages", {"messages": []}),
        ("prompt", {"prompt": "x" * (MAX_TEXT_CHARS + 1)}),
        ("add_generation_prompt", {"prompt": "a", "add_generation_prompt": True}),
        ("add_special_tokens", {"prompt": "a", "add_special_tokens": 1}),
        ("nonsense", {"prompt": "a", "nonsense": 1}),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_wrong_request_to_tokenize_is_refused_by_its_field(client, param, body):
    assert (await refuse(client, "/tokenize", **body))["param"] == param


@pytest.mark.parametrize(
    "tokens",
    [None, 1, "a", [-1], [10**9], [2**70], [1.5], [True], ["1"], [[1]], [1] * (MAX_NUM_TOKENS + 1)],
    ids=lambda value: repr(value)[:40],
)
async def test_wrong_token_ids_are_refused(client, tokens):
    error = await refuse(client, "/detokenize", tokens=tokens)
    assert error["param"].split(".")[0] == "tokens"


async def test_an_id_outside_the_vocabulary_has_its_own_code(client, byte_tokenizer):
    error = await refuse(client, "/detokenize", tokens=[byte_tokenizer.vocab_size])
    assert error["code"] == "invalid_token_id"


async def test_no_tokens_are_no_text(client):
    assert await post(client, "/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_not_found(client, path):
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    assert (await refuse(client, path, 404, model="other", **body))["code"] == "model_not_found"
    assert await post(client, path, model="tiny", **body)


async def test_what_a_remote_tokenizer_needs_is_told(client, byte_tokenizer):
    info = (await client.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|end|>"
    assert info["bos_token"] is None
    assert "add_generation_prompt" in info["chat_template"]
    assert (info["vocab_size"], info["max_model_len"]) == (byte_tokenizer.vocab_size, MAX_MODEL_LEN)
    body = {"prompt": info["eos_token"], "add_special_tokens": False}
    assert (await post(client, "/tokenize", **body))["tokens"] == [0]


async def test_before_the_model_is_there_clients_are_told_to_come_again(client, engine):
    engine.error = EngineStartingError()
    await refuse(client, "/tokenize", 503, prompt="a")
    await refuse(client, "/detokenize", 503, tokens=[1])
    assert (await client.get("/tokenizer_info")).status_code == 503


async def test_a_long_text_does_not_hold_up_other_requests(client):
    text = "Hello world, this is a small test. " * 30_000
    longest = asyncio.create_task(post(client, "/tokenize", prompt=text))
    num_answers = 0
    while not longest.done():
        await client.get("/version")
        await asyncio.sleep(0.001)
        num_answers += 1
    # Hundreds; few if the loop stood still.
    assert num_answers > 20
    assert (await longest)["count"] > 30_000


async def test_the_load_is_what_runs_and_what_waits(client, metrics: Metrics):
    metrics.record_queue(4)
    metrics.record_step(StepStats(num_running=2, num_waiting=1, kv_cache_usage_ratio=0.5))
    assert (await client.get("/load")).json() == {
        "server_load": 7,
        "num_requests_running": 2,
        "num_requests_waiting": 5,
    }
