from __future__ import annotations

import pytest

from app.errors import EngineDownError, EngineStartingError


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
        ("POST", "/v1/completions", 400),
    ],
)
async def test_every_refusal_is_openais_envelope(client, method, path, status_code):
    assert_is_envelope(await client.request(method, path), status_code)


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
