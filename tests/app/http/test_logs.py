from __future__ import annotations

import contextlib
import io
import json
import logging
import subprocess
import sys

import pytest

from app.log_format import JsonFormatter, TextFormatter

SECRET = "a private sentence"


@contextlib.contextmanager
def logging_to(formatter):
    """What this package logs, from debug on."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    logger = logging.getLogger("app")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(params=[TextFormatter, JsonFormatter], ids=["text", "json"])
def log(request):
    with logging_to(request.param()) as written:
        yield written


@pytest.fixture
def json_log():
    with logging_to(JsonFormatter()) as written:
        yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]


def access_lines(entries):
    return [entry for entry in entries if entry["logger"] == "app.http.access_log"]


async def test_a_request_is_one_line_with_its_id_route_status_and_time(client, json_log):
    headers = {"X-Request-Id": "mine"}
    await client.get("/v1/models/tiny", headers=headers)
    [line] = access_lines(json_log())
    assert line["request_id"] == "mine"
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/models/{name:path}", 200)
    assert line["seconds"] >= 0
    assert line["level"] == "info"
    assert line["time"].endswith("Z")


async def test_a_path_that_a_client_made_up_is_not_in_the_log(client, log):
    await client.get("/made-up-by-me")
    assert "made-up-by-me" not in log.getvalue()


@pytest.mark.parametrize("path", ["/health", "/health/live", "/metrics"])
async def test_probes_and_scrapes_are_logged_at_debug(client, json_log, path):
    await client.get(path)
    assert [line["level"] for line in access_lines(json_log())] == ["debug"]


async def test_the_key_is_logged_by_its_number_only(client_with, json_log):
    client = client_with(api_key=["the-key-itself"])
    await client.get("/version", headers={"Authorization": "Bearer the-key-itself"})
    [line] = access_lines(json_log())
    assert line["tenant"] == "key-1"
    assert "the-key-itself" not in str(json_log())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_prompts_and_outputs_are_not_logged(client, log, stream):
    body = {"prompt": SECRET, "stream": stream, "stop": ["a private stop"], "max_tokens": 1}
    await client.post("/v1/completions", json=body)
    await client.post("/v1/completions", json=body | {"unknown": SECRET})
    assert "private" not in log.getvalue()
    assert "Hello" not in log.getvalue()
    assert "/v1/completions" in log.getvalue()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_prompts_and_outputs_are_logged_when_that_is_asked_for(client_with, log, stream):
    client = client_with(log_prompts=True)
    await client.post("/v1/completions", json={"prompt": SECRET, "stream": stream})
    assert SECRET in log.getvalue()
    assert "Hello" in log.getvalue()


async def test_a_bug_is_logged_with_its_traceback_and_the_requests_id(client, engine, json_log):
    def script(_):
        raise KeyError("details")

    engine.script = script
    headers = {"X-Request-Id": "mine"}
    response = await client.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
    assert response.json()["error"]["code"] == "internal_error"
    [line] = [entry for entry in json_log() if entry["level"] == "error"]
    assert line["request_id"] == "mine"
    assert "KeyError: 'details'" in line["exception"]


def test_nothing_that_is_logged_can_look_like_another_line(log):
    forged = "x\n2026-01-01 ERROR app: forged\r\x1b[31m\u2028\u202ey\x00"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("app").exception("bad %s", forged, extra={"fields": {"name": forged}})
    lines = log.getvalue().splitlines()
    assert not [line for line in lines[1:] if not line.startswith("    ")]
    assert not any(character in log.getvalue() for character in "\r\x1b\u2028\u202e\x00")


def test_json_lines_stay_json_whatever_is_in_them(json_log):
    logging.getLogger("app").info("a %s", "\ud83d\n", extra={"fields": {"value": object()}})
    [line] = json_log()
    assert line["message"] == "a \ud83d\n"


def test_logs_go_to_stderr_in_the_format_that_is_set():
    code = (
        "import logging, app.log_format as f; f.configure_logging('info', 'json');"
        "logging.getLogger('x').info('hello'); logging.getLogger('x').debug('hidden')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert json.loads(line)["message"] == "hello"
