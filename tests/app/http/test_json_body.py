from __future__ import annotations

import json

import pytest

from app.api.completion_request import CompletionRequest
from app.errors import InvalidRequestError, RequestTooLargeError
from app.http.json_body import (
    MAX_DEPTH,
    MAX_INLINE_BYTES,
    MAX_NUM_BRACKETS,
    MAX_NUM_COMMAS,
    parse_body,
)

JSON = {"Content-Type": "application/json"}


def nested(depth, opening="[", closing="]"):
    return f'{{"prompt": "Hi", "logit_bias": {opening * depth}{closing * depth}}}'


@pytest.mark.parametrize(
    "body",
    [
        "",
        " ",
        "{",
        "nonsense",
        "[]",
        "null",
        '"text"',
        "1",
        '{"prompt": "Hi"} x',
        '{"prompt": "Hi",}',
        "{'prompt': 'Hi'}",
        '{"prompt": "Hi", "temperature": NaN}',
        '{"prompt": "Hi", "temperature": Infinity}',
        '{"prompt": "Hi", "temperature": -Infinity}',
        '{"prompt": "Hi", "temperature": 1e999}',
        '{"prompt": "Hi", "seed": 1' + "0" * 5000 + "}",
        '{"prompt": "\\ud83d"}',
        '{"prompt": "\\ude00\\ud83d"}',
        '{"prompt": "Hi", "stop": ["a\\ud83d"]}',
        '{"prompt": "Hi", "user": "\\udfff"}',
        '{"prompt": "Hi", "\\ud83d": 1}',
        '{"prompt": "a\x01b"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\xbd"}',
        '{"prompt": "Hi"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"prompt": "Hi"}',
        b"\x1f\x8b\x08\x00",
        nested(MAX_DEPTH),
        nested(MAX_DEPTH, '{"a":', "}"),
        nested(900),
        nested(20_000),
        "[" * 100_000,
    ],
    ids=lambda body: repr(body[:60]),
)
async def test_what_is_not_a_json_object_is_refused(client, body):
    """sglang#28153, Rapid-MLX#740, colibri#1589, technocore-chat#130: NaN, surrogates, nesting."""
    response = await client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_paired_surrogates_are_one_character(client, engine, byte_tokenizer):
    body = '{"prompt": "\\ud83d\\ude00"}'
    response = await client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 200
    assert engine.requests[0].prompt_token_ids == byte_tokenizer.encode("😀")


def test_the_last_of_two_equal_keys_counts():
    assert parse_body(b'{"prompt": "a", "prompt": "b"}', CompletionRequest).prompt == "b"


@pytest.mark.parametrize("temperature", ["-0.1", "2.1", "1e308"])
async def test_a_number_out_of_range_is_a_field_error(client, temperature):
    body = f'{{"prompt": "Hi", "temperature": {temperature}}}'
    response = await client.post("/v1/completions", content=body, headers=JSON)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
    ],
)
async def test_json_is_known_in_any_spelling(client, content_type):
    headers = {"Content-Type": content_type}
    response = await client.post("/v1/completions", content=b'{"prompt":"Hi"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "text/json"},
        {"Content-Type": "multipart/form-data; boundary=application/json"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=latin-1"},
        JSON | {"Content-Encoding": "gzip"},
        JSON | {"Content-Encoding": "br, identity"},
    ],
    ids=str,
)
async def test_another_kind_of_body_is_a_415_that_says_what_to_do(client, headers):
    response = await client.post("/v1/completions", content=b'{"prompt":"Hi"}', headers=headers)
    assert response.status_code == 415
    error = response.json()["error"]
    assert error["code"] == "unsupported_media_type"
    assert "must" in error["message"]


async def test_an_encoding_that_does_nothing_is_allowed(client):
    headers = JSON | {"Content-Encoding": "identity"}
    response = await client.post("/v1/completions", content=b'{"prompt":"Hi"}', headers=headers)
    assert response.status_code == 200


async def test_a_large_body_is_read_like_a_small_one(client, engine, byte_tokenizer):
    prompt = "Hi" + " " * MAX_INLINE_BYTES
    body = {"prompt": prompt, "truncate_prompt_tokens": 10}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200
    assert engine.requests[0].prompt_token_ids == byte_tokenizer.encode(prompt)[-10:]
    bad = await client.post("/v1/completions", json=body | {"n": -1})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    "values", [",".join(["1"] * (MAX_NUM_COMMAS + 2)), ",".join(["[]"] * MAX_NUM_BRACKETS)]
)
def test_a_body_of_endless_small_values_is_refused_unread(values):
    with pytest.raises(RequestTooLargeError):
        parse_body(f'{{"prompt": [{values}]}}'.encode(), CompletionRequest)


def test_a_body_with_endless_keys_names_one_error():
    keys = {f"key{number}": 1 for number in range(1000)}
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(json.dumps({"prompt": "Hi", "stream_options": keys}).encode(), CompletionRequest)
    assert caught.value.param == "stream_options"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Hi", "x" * 100_000: 1},
        {"prompt": "Hi", "temperature": "x" * 100_000},
        {"prompt": [["x" * 100_000]]},
        {"prompt": "Hi", "response_format": {"type": "x" * 100_000}},
        {"prompt": "Hi", "model": "x" * 100_000},
        {"prompt": "Hi", "request_id": "x" * 100_000},
        {"prompt": "Hi", "stream_options": {"x" * 100_000: {"y": 1}}},
    ],
    ids=lambda body: str(body)[:40],
)
async def test_an_error_does_not_send_the_input_back(client, body):
    response = await client.post("/v1/completions", json=body)
    assert response.status_code in (400, 404)
    error = response.json()["error"]
    assert "x" * 100 not in response.text
    assert len(error["message"]) <= 500
