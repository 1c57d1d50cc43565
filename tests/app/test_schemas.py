from __future__ import annotations

import json

import pytest

from app.errors import InvalidRequestError
from app.schemas import UNSUPPORTED_PARAMETERS, CompletionRequest, parse_completion_request


def parse(**fields) -> CompletionRequest:
    return parse_completion_request(json.dumps({"prompt": "Hi", **fields}).encode())


def refusal(body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_completion_request(body)
    return caught.value


@pytest.mark.parametrize(
    "prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]], ids=["text", "texts", "ids", "lists-of-ids"]
)
def test_all_four_prompt_forms_are_accepted(prompt):
    assert parse(prompt=prompt).prompt == prompt


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("prompt", None),
        ("prompt", 1),
        ("prompt", [1, True]),
        ("prompt", [1, 2.0]),
        ("prompt", [1, "a"]),
        ("prompt", [["a"]]),
        ("prompt", [[1, None]]),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("n", 2.0),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "8"),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 0.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 11),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1e3": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {"٣": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", [1]),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("logprobs", -1),
        ("logprobs", True),
        ("echo", 1),
        ("stream", "true"),
        ("stream_options", {"include_usage": True}),
        ("user", 1),
        ("speculative", 3),
        ("speculative", {"num_speculative_tokens": -1}),
    ],
    ids=repr,
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(param, value):
    error = refusal(json.dumps({"prompt": "Hi", param: value}).encode())
    assert (error.status_code, error.param) == (400, param)


def test_null_is_the_default_of_every_optional_field():
    nulls = {name: None for name in CompletionRequest.model_fields if name != "prompt"}
    assert parse(**nulls) == parse()
    assert parse(**dict.fromkeys(UNSUPPORTED_PARAMETERS)) == parse()


@pytest.mark.parametrize("name", UNSUPPORTED_PARAMETERS)
def test_what_is_not_supported_is_refused_by_name(name):
    error = refusal(json.dumps({"prompt": "Hi", name: "something"}).encode())
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [{"suffix": ""}, {"best_of": 1}, {"response_format": {"type": "text"}}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_not_supported_may_be_left_at_its_default(fields):
    assert parse(**fields) == parse()


def test_an_unknown_field_is_refused_by_name():
    error = refusal(b'{"prompt": "Hi", "temprature": 1}')
    assert (error.param, error.code) == ("temprature", "unknown_parameter")


def test_an_unknown_nested_field_is_refused_by_name():
    error = refusal(b'{"prompt": "Hi", "stream": true, "stream_options": {"x": 1}}')
    assert (error.param, error.code) == ("stream_options.x", "unknown_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "temperature": Infinity}',
        b'{"prompt": "Hi", "temperature": 1e999}',
        b'{"prompt": "x \\ud83d"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"prompt": "Hi"} trailing',
        b'{"prompt": ' + b"9" * 6_000 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_is_not_strict_json_is_refused(body):
    error = refusal(body)
    assert (error.status_code, error.code) == (400, "invalid_json")


def test_a_refusal_does_not_repeat_what_was_sent():
    error = refusal(json.dumps({"prompt": "Hi", "stop": ["x" * 10_000, 1]}).encode())
    assert "xxx" not in error.message
    error = refusal(json.dumps({"prompt": "Hi", "y" * 10_000: 1}).encode())
    assert len(error.message) < 200


@pytest.mark.parametrize(
    ("speculative", "expected"),
    [(None, None), (True, None), (False, 0), ({"num_speculative_tokens": 3}, 3)],
    ids=repr,
)
def test_speculation_can_be_chosen_per_request(speculative, expected):
    assert parse(speculative=speculative).num_speculative_tokens == expected
