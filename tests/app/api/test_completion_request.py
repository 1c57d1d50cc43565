from __future__ import annotations

import json

import pytest

from app.api.completion_request import CompletionRequest
from app.api.generation_request import UNSUPPORTED_PARAMETERS
from app.errors import InvalidRequestError
from app.http.json_body import parse_body


def parse(**fields) -> CompletionRequest:
    return parse_body(json.dumps({"prompt": "Hi", **fields}).encode(), CompletionRequest)


def refusal(body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(body, CompletionRequest)
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
        ("best_of", 0),
        ("best_of", 21),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("bad_words", ["a"] * 1025),
        ("skip_special_tokens", 1),
        ("include_stop_str_in_output", "yes"),
        ("response_format", {"type": "xml"}),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "json": {}}),
        ("prediction", {"content": 1}),
        ("prediction", {"type": "other", "content": "a"}),
        ("prompt_logprobs", -1),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("return_token_ids", 1),
        ("priority", 2**63),
        ("timeout", 0),
        ("timeout", 86401),
        ("request_id", ""),
        ("request_id", "a b"),
        ("request_id", "a" * 129),
        ("cache_salt", ""),
        ("cache_salt", "a" * 1025),
        ("add_special_tokens", 1),
        ("suffix", 1),
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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "a", "echo": True}, "echo"),
        ({"suffix": "a", "prompt": [1]}, "suffix"),
        ({"suffix": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            "structured_outputs",
        ),
    ],
    ids=str,
)
def test_fields_that_contradict_each_other_are_refused_by_name(fields, param):
    error = refusal(json.dumps({"prompt": "Hi", **fields}).encode())
    assert error.param == param


@pytest.mark.parametrize("name", ["stop", "logit_bias", "allowed_token_ids"])
def test_an_array_or_object_of_a_million_items_is_refused_before_it_is_read(name):
    items = [1] * 300_000 if name != "logit_bias" else {str(i): 1 for i in range(300_000)}
    error = refusal(json.dumps({"prompt": "Hi", name: items}).encode())
    assert error.param == name
    assert "262144" in error.message


def test_more_than_1024_lists_of_ids_are_refused():
    error = refusal(json.dumps({"prompt": [[1]] * 1025}).encode())
    assert (error.param, "1024" in error.message) == ("prompt", True)


@pytest.mark.parametrize("name", UNSUPPORTED_PARAMETERS)
def test_what_is_not_supported_is_refused_by_name(name):
    error = refusal(json.dumps({"prompt": "Hi", name: "something"}).encode())
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [{"use_beam_search": False}, {"length_penalty": 1.0}, {"metadata": {}}, {"store": False}],
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
