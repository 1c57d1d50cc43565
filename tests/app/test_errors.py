from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from app.errors import (
    AuthenticationError,
    EngineDownError,
    EngineFailedError,
    EngineStartingError,
    InvalidRequestError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
    ServerStoppingError,
)


def assert_is_envelope(response, status_code):
    assert response.status_code == status_code
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"]


@pytest.mark.parametrize(
    ("method", "path", "status_code"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/metrics", 405),
        ("POST", "/health/live", 405),
        ("POST", "/v1/completions", 415),
        ("GET", "/", 404),
        ("POST", "/v1/completions/", 404),
        ("POST", "//v1/completions", 404),
        ("POST", "/completions", 404),
        ("TRACE", "/v1/models", 405),
        ("GET", "/favicon.ico", 404),
    ],
)
async def test_every_refusal_is_openais_envelope(client, method, path, status_code):
    response = await client.request(method, path)
    assert_is_envelope(response, status_code)
    assert "location" not in response.headers


@pytest.mark.parametrize("error", [EngineStartingError(), EngineDownError("It ended.")], ids=str)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/health/ready"),
        ("GET", "/ready"),
    ],
)
async def test_without_an_engine_every_route_says_when_to_come_again(
    client, engine, error, method, path
):
    engine.error = error
    response = await client.request(method, path, json={"prompt": "Hi"})
    assert_is_envelope(response, 503)
    seconds = int(response.headers["retry-after"])
    assert int(response.headers["retry-after-ms"]) == seconds * 1000


async def test_a_bug_is_an_internal_error_without_its_details(client, engine):
    def script(_):
        raise KeyError("secret")

    engine.script = script
    response = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert_is_envelope(response, 500)
    assert "secret" not in response.text


async def test_a_wrong_method_names_the_right_one(client):
    response = await client.get("/v1/completions")
    assert response.headers["allow"] == "POST"


async def test_the_process_is_alive_while_the_engine_is_not(client, engine):
    engine.error = EngineStartingError()
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ready"])
async def test_the_server_is_ready_when_the_engine_is(client, path):
    assert (await client.get(path)).status_code == 200


async def test_the_model_is_listed_with_its_context_length(client):
    [model] = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 64)
    assert (await client.get("/v1/models/tiny")).json() == model


async def test_the_version_is_told(client):
    assert (await client.get("/version")).json()["version"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (AuthenticationError("x"), 401, "invalid_api_key"),
        (RequestTimeoutError("x"), 408, "request_timeout"),
        (RequestTooLargeError("x"), 413, "request_too_large"),
        (QueueFullError("x"), 429, "queue_full"),
        (QueueTimeoutError(), 503, "queue_timeout"),
        (ServerStoppingError(), 503, "server_stopping"),
        (EngineFailedError("x"), 500, "engine_error"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_error_has_its_status_and_a_stable_code(
    client, engine, error, status, code, stream
):
    engine.error = error
    response = await client.post("/v1/completions", json={"prompt": "Hi", "stream": stream})
    assert_is_envelope(response, status)
    assert response.json()["error"]["code"] == code
    assert ("retry-after" in response.headers) == (status in (429, 503))


async def test_a_clients_mistake_is_the_clients_exception(app):
    """vllm#12886: an error that the openai client could not read."""
    transport = httpx.ASGITransport(app=app)
    http_client = httpx.AsyncClient(transport=transport, base_url="http://tandem")
    client = AsyncOpenAI(base_url="http://tandem/v1", api_key="none", http_client=http_client)
    with pytest.raises(BadRequestError) as caught:
        await client.completions.create(model="tiny", prompt="Hi", temperature=9)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    with pytest.raises(NotFoundError) as not_found:
        await client.completions.create(model="other", prompt="Hi")
    assert not_found.value.code == "model_not_found"


def test_a_message_is_never_long():
    assert len(InvalidRequestError("x" * 10_000).message) == 500


async def test_unknown_paths_add_no_series(client, metrics):
    """sglang#31193, dstack#3455, artifact-keeper#2220."""
    before = metrics.render().count(b"\n")
    for number in range(1000):
        await client.get(f"/nowhere/{number}")
    assert metrics.render().count(b"\n") == before
