from __future__ import annotations

import pytest

ORIGIN = "https://app.example"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


async def test_without_origins_a_browser_is_told_nothing(client):
    preflight = await client.options("/v1/completions", headers=PREFLIGHT)
    answer = await client.get("/v1/models", headers={"Origin": ORIGIN})
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [["*"], [ORIGIN, "https://other.example"]], ids=str)
async def test_a_listed_origin_may_ask_and_read_the_headers(client_with, origins):
    client = client_with(cors_allow_origins=origins)
    answer = await client.get("/v1/models", headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] in ("*", ORIGIN)
    exposed = answer.headers["access-control-expose-headers"]
    assert "X-Request-Id" in exposed
    assert "Retry-After" in exposed
    assert "access-control-allow-credentials" not in answer.headers


async def test_a_preflight_needs_no_key_and_allows_the_clients_headers(client_with):
    client = client_with(cors_allow_origins=[ORIGIN], api_key=["k"])
    preflight = await client.options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]


async def test_another_origin_is_refused_in_the_envelope(client_with):
    client = client_with(cors_allow_origins=[ORIGIN])
    headers = PREFLIGHT | {"Origin": "https://evil.example"}
    preflight = await client.options("/v1/completions", headers=headers)
    assert preflight.status_code == 400
    assert preflight.json()["error"]["code"] == "cors_not_allowed"
    assert "access-control-allow-origin" not in preflight.headers
    answer = await client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_errors_can_be_read_by_the_page_as_well(client_with, engine):
    client = client_with(cors_allow_origins=[ORIGIN], api_key=["k"])
    key = {"Authorization": "Bearer k"}

    def script(_):
        raise KeyError

    engine.script = script
    answers = [
        await client.get("/v1/models", headers={"Origin": ORIGIN}),
        await client.get("/nowhere", headers={"Origin": ORIGIN} | key),
        await client.post("/v1/completions", json={}, headers={"Origin": ORIGIN} | key),
        await client.post(
            "/v1/completions", json={"prompt": "Hi"}, headers={"Origin": ORIGIN} | key
        ),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 400, 500]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
