from __future__ import annotations

import pytest

from app.http.api_keys import ApiKeys
from app.settings import WrongSettingsError, parse_settings

KEYS = {"api_key": ["first-key", "second-key"]}
PROMPT = {"prompt": "Hi"}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["first-key", "second-key"])
async def test_every_key_opens_the_server(client_with, key):
    response = await client_with(**KEYS).post("/v1/completions", json=PROMPT, headers=bearer(key))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("first-ke"),
        bearer("first-key-"),
        bearer("first-key,second-key"),
        bearer("FIRST-KEY"),
        bearer("naïve").copy() | {"X-Api-Key": "first-key"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        [("Authorization", "Bearer first-key"), ("Authorization", "Bearer first-key")],
    ],
    ids=str,
)
async def test_without_a_good_key_the_answer_is_401_in_the_envelope(client_with, headers):
    if isinstance(headers, dict):
        headers = {name: value.encode("latin-1") for name, value in headers.items()}
    response = await client_with(**KEYS).post("/v1/completions", json=PROMPT, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "first-key" not in response.text


async def test_the_scheme_is_read_in_any_case(client_with):
    headers = {"Authorization": "bearer  first-key"}
    assert (await client_with(**KEYS).get("/version", headers=headers)).status_code == 200


async def test_every_route_needs_a_key_but_health_and_metrics(app_with, client_with):
    """vllm#18892, vllm#58144: routes outside /v1 were open."""
    client = client_with(**KEYS)
    open_paths = {"/health", "/health/live", "/health/ready", "/ready", "/metrics"}
    paths = {route.path for route in app_with(**KEYS).routes if hasattr(route, "path")}
    paths |= set(app_with().openapi()["paths"]) | {"/openapi.json", "/docs"}
    assert open_paths < paths
    for path in paths:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
            status = (await client.request(method, path)).status_code
            assert (status == 401) == (path not in open_paths), (method, path, status)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/V1/Models",
        "/v1/./models",
        "/health/../v1/models",
        "/health/%2e%2e/v1/models",
        "/health%2F..%2Fv1%2Fmodels",
        "/health;/v1/models",
        "/health/live/",
        "/health%00",
        "/health%3F/v1/models",
        "/metrics/",
        "/metrics//",
        "/Health",
        "/healthz",
        "/%2fhealth",
        "/",
        "/nowhere",
    ],
)
async def test_no_spelling_of_a_path_goes_around_the_key(client_with, path):
    assert (await client_with(**KEYS).get(path)).status_code == 401


async def test_a_path_that_is_open_is_the_open_route_in_any_spelling(client_with):
    """The router and the guard see the same decoded path."""
    response = await client_with(**KEYS).get("/health%2Flive")
    assert (response.status_code, response.json()) == (200, {"status": "live"})


async def test_metrics_can_be_guarded_too(client_with):
    client = client_with(**KEYS, api_key_for_metrics=True)
    assert (await client.get("/metrics")).status_code == 401
    assert (await client.get("/metrics", headers=bearer("first-key"))).status_code == 200
    assert (await client.get("/health")).status_code == 200


async def test_without_keys_everybody_may_ask(client):
    assert (await client.get("/v1/models")).status_code == 200


async def test_a_queue_turn_is_charged_to_the_key_by_its_number(client_with, engine):
    client = client_with(**KEYS)
    for key in ("second-key", "first-key"):
        await client.post("/v1/completions", json=PROMPT, headers=bearer(key))
    assert engine.tenants == ["key-2", "key-1"]


def test_a_key_is_known_by_all_of_its_bytes():
    keys = ApiKeys(["a", "ab"])
    assert [keys.tenant(key) for key in (b"a", b"ab", b"b", b"")] == ["key-1", "key-2", None, None]


def test_keys_come_from_flags_and_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# for the team\n\nfrom-file\n  spaced  \n")
    settings = parse_settings(["--api-key", "a", "--api-key", "b,c", "--api-key-file", str(path)])
    assert settings.api_keys == ["a", "b", "c", "from-file", "spaced"]


def test_keys_come_from_the_environment(monkeypatch, tmp_path):
    path = tmp_path / "keys"
    path.write_text("from-file")
    monkeypatch.setenv("TANDEM_API_KEY", "a,b")
    monkeypatch.setenv("TANDEM_API_KEY_FILE", str(path))
    assert parse_settings([]).api_keys == ["a", "b", "from-file"]


def test_settings_do_not_show_keys():
    settings = parse_settings(["--api-key", "hidden-key"])
    assert "hidden-key" not in f"{settings!r} {settings} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    "content", [None, "", "# nothing\n\n", "a key with spaces\n", b"\xff\xfe"], ids=repr
)
def test_a_key_file_without_usable_keys_is_a_start_up_error(tmp_path, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(WrongSettingsError, match="--api-key-file") as caught:
        parse_settings(["--api-key-file", str(path)])
    assert "a key with spaces" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a b", "ü", "a,", "line\n"])
def test_a_key_that_a_client_could_not_send_is_a_start_up_error(key):
    with pytest.raises(WrongSettingsError, match="--api-key") as caught:
        parse_settings(["--api-key", key])
    assert "a b" not in str(caught.value)
