from __future__ import annotations

import re

import pytest

FRESH = re.compile(r"[0-9a-f]{32}")
PROMPT = {"prompt": "Hi"}


@pytest.mark.parametrize("given", ["a", "A-z_0.9:x", "x" * 128])
async def test_a_good_request_id_is_kept(client, given):
    response = await client.post("/v1/completions", json=PROMPT, headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == given
    assert response.json()["id"] == f"cmpl-{given}"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"x" * 129,
        b"a b",
        b"a\nb",
        b"a\n",
        b"a\r\nSet-Cookie: b",
        b"\xe9",
        b"a/b",
        b"x" * 100_000,
    ],
    ids=lambda given: repr(given[:20]),
)
async def test_a_bad_request_id_is_replaced(client, given, caplog):
    """vllm PR#10968: a megabyte came back and was logged."""
    with caplog.at_level("DEBUG"):
        response = await client.get("/version", headers={"X-Request-Id": given})
    assert FRESH.fullmatch(response.headers["x-request-id"])
    assert response.headers.get_list("x-request-id") == [response.headers["x-request-id"]]
    assert not given or given.decode("latin-1") not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/nowhere", None),
        ("GET", "/v1/completions", None),
        ("POST", "/v1/completions", {}),
        ("POST", "/v1/completions", {**PROMPT, "stream": True}),
    ],
)
async def test_every_answer_has_a_request_id(client, method, path, body):
    response = await client.request(method, path, json=body, headers={"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"


async def test_an_answer_to_a_wrong_key_and_to_a_bug_has_it_too(client_with, engine):
    client = client_with(api_key=["k"])
    refused = await client.get("/version")

    def script(_):
        raise KeyError

    engine.script = script
    headers = {"Authorization": "Bearer k", "X-Request-Id": "mine"}
    failed = await client.post("/v1/completions", json=PROMPT, headers=headers)
    assert (refused.status_code, failed.status_code) == (401, 500)
    assert FRESH.fullmatch(refused.headers["x-request-id"])
    assert failed.headers["x-request-id"] == "mine"


async def test_two_requests_of_one_id_are_two_requests_of_the_engine(client, engine):
    """vllm#15041, vllm#10583: the second one broke the engine."""
    for _ in range(2):
        await client.post("/v1/completions", json=PROMPT, headers={"X-Request-Id": "same"})
    assert len({request.request_id for request in engine.requests}) == 2
