"""docs/api.md is compared with the code, so that it is neither short of anything nor wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from schema_words import field_words

from app import errors
from app.api.chat_request import ChatRequest
from app.api.completion_request import CompletionRequest
from app.api.generation_request import MAX_TIMEOUT_SECONDS, GenerationRequest
from app.api.tokenize_request import DetokenizeRequest, TokenizeRequest
from app.errors import TandemError
from app.generation.request_limits import MAX_NUM_CHOICES, MAX_NUM_LOGPROBS
from app.settings import Settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "api.md").read_text()
SHARED = "## Fields that completions and chat share"
COMPLETIONS = "## `POST /v1/completions`"
CHAT = "## `POST /v1/chat/completions`"


def section(title: str) -> str:
    """From a heading to the next one of its level."""
    [_, rest] = PAGE.split(f"\n{title}\n")
    return rest.split("\n## ")[0]


def told_fields(title: str) -> dict[str, tuple[str, ...]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    table = [[cell.strip() for cell in line.split("|")[1:]] for line in lines]
    return {name.strip("`"): tuple(words[:3]) for name, *words in table}


def told_codes() -> set[tuple[int, str]]:
    found = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", section("## Errors"), re.MULTILINE)
    return {(int(status), code) for status, code in found}


def known_errors(kind: type[TandemError] = TandemError) -> Iterator[tuple[int, str]]:
    if kind.code is not None:
        yield kind.status_code, kind.code
    for child in kind.__subclasses__():
        yield from known_errors(child)


def test_the_fields_that_both_share_are_told_as_they_are():
    assert told_fields(SHARED) == field_words(GenerationRequest)


@pytest.mark.parametrize(
    ("title", "model"),
    [(COMPLETIONS, CompletionRequest), (CHAT, ChatRequest)],
    ids=["text", "chat"],
)
def test_the_fields_of_one_endpoint_are_told_as_they_are(title, model):
    shared = field_words(GenerationRequest).items()
    own = dict(field_words(model).items() - shared)
    assert told_fields(title) == own


@pytest.mark.parametrize("model", [CompletionRequest, ChatRequest], ids=["text", "chat"])
def test_the_keys_of_objects_are_named_where_the_object_is(model):
    schema = model.model_json_schema()
    for definition in schema["$defs"].values():
        for key in definition["properties"]:
            assert f"`{key}`" in PAGE, key


@pytest.mark.parametrize("model", [CompletionRequest, ChatRequest], ids=["text", "chat"])
def test_what_is_not_offered_is_named(model):
    for name in model.unsupported_parameters():
        assert f"`{name}`" in PAGE, name


def test_every_error_class_is_listed_with_its_status():
    assert set(known_errors()) <= told_codes()


def test_the_codes_are_those_that_occur_in_the_code():
    source = "".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    source = source.replace(Path(errors.__file__).read_text().split('"""')[1], "")
    in_code = set(re.findall(r'\bcode(?:: str \| None)? ?= ?"([a-z_]+)"', source))
    in_code |= set(re.findall(r'message, code = .*, "([a-z_]+)"$', source, re.MULTILINE))
    assert {code for _, code in told_codes()} == in_code


def test_every_path_is_named(app):
    for path in app.openapi()["paths"]:
        assert f"{path}`" in PAGE, path


@pytest.mark.parametrize("model", [TokenizeRequest, DetokenizeRequest])
def test_the_fields_of_the_tokenizers_endpoints_are_named(model):
    for name in model.model_fields:
        assert f"`{name}`" in section("## Other endpoints"), name


def test_the_limits_in_the_text_are_the_defaults():
    settings = Settings()
    assert f"at most {settings.max_logprobs} (`--max-logprobs`)" in PAGE
    assert f"at most {settings.max_num_stop_strings} (`--max-num-stop-strings`)" in PAGE
    assert f"{settings.max_body_bytes // 2**20} MiB (`--max-body-bytes`)" in PAGE
    assert f"{settings.sse_keep_alive_seconds:g} seconds were silent" in PAGE
    assert f"does not read for {settings.write_timeout:g} seconds (`--write-timeout`)" in PAGE
    assert f"At most {MAX_NUM_CHOICES} choices" in PAGE
    assert (MAX_NUM_LOGPROBS, "four million logprobs" in PAGE) == (4_000_000, True)
    assert f"above 0 to {MAX_TIMEOUT_SECONDS}" in PAGE
