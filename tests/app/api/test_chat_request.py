from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion

from app.api.chat_request import ChatRequest
from app.errors import InvalidRequestError
from app.http.json_body import parse_body

HI = {"role": "user", "content": "Hi"}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
}


def parse(**fields) -> ChatRequest:
    return parse_body(json.dumps({"messages": [HI], **fields}).encode(), ChatRequest)


def refusal(**fields) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**fields)
    return caught.value


def test_a_message_that_the_client_got_can_be_sent_back():
    message = ChatCompletion.model_validate(ANSWER).choices[0].message.model_dump()
    extra = {"annotations": [], "tool_calls": [], "audio": None, "function_call": None}
    body = parse(messages=[HI, message, {**message, **extra}, HI])
    assert [message.content for message in body.messages] == ["Hi", "Hello", "Hello", "Hi"]


def test_an_assistants_message_may_be_without_content():
    body = parse(messages=[HI, {"role": "assistant", "content": None}, {"role": "assistant"}])
    assert [message.content for message in body.messages] == ["Hi", "", ""]


def test_texts_of_parts_stay_apart_for_the_template():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [message] = parse(messages=[{"role": "user", "content": parts}]).messages
    assert message.template_fields == {"role": "user", "content": ["a", "b"]}


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "Hi",
        ["Hi"],
        [{"content": "Hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ["Hi"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        [{"role": "user", "content": [{"text": "Hi"}]}],
        [{"role": "", "content": "Hi"}],
        [{"role": 1, "content": "Hi"}],
        [{"role": "a" * 65, "content": "Hi"}],
    ],
    ids=repr,
)
def test_messages_of_another_form_are_refused(messages):
    error = refusal(messages=messages)
    assert (error.status_code, error.param.split(".")[0]) == (400, "messages")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_a_part_that_is_not_text_is_refused_by_the_name_of_its_type(kind):
    error = refusal(messages=[{"role": "user", "content": [{"type": kind, kind: {}}]}])
    assert (error.param, error.code) == ("messages", "unsupported_parameter")
    assert kind in error.message


def test_the_content_of_a_wrong_part_is_not_repeated():
    secret = "x" * 5000
    error = refusal(messages=[{"role": "user", "content": [{"type": secret, "text": secret}]}])
    assert "xxx" not in error.message


def test_tool_calls_are_refused():
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    error = refusal(messages=[HI, {"role": "assistant", "content": None, "tool_calls": calls}])
    assert (error.param, error.code) == ("messages", "unsupported_parameter")


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "a"}]),
    ],
    ids=str,
)
def test_what_is_not_offered_is_refused_by_name(param, value):
    error = refusal(**{param: value})
    assert (error.param, error.code) == (param, "unsupported_parameter")


def test_what_is_not_offered_may_be_asked_for_in_vain():
    neutral = {"tools": [], "tool_choice": "none", "modalities": ["text"], "audio": None}
    assert parse(**neutral) == parse()


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_tokens", {"max_tokens": 4, "max_completion_tokens": 5}),
        ("logprobs", {"logprobs": 1}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("add_generation_prompt", {"add_generation_prompt": True, "continue_final_message": True}),
        ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
        ("min_tokens", {"min_tokens": 5, "max_completion_tokens": 4}),
        ("prompt", {"prompt": "Hi"}),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(param, fields):
    error = refusal(**fields)
    assert (error.status_code, error.param) == (400, param)


def test_null_is_the_default_of_every_optional_field():
    nulls = {name: None for name in ChatRequest.model_fields if name != "messages"}
    assert parse(**nulls) == parse()
    assert parse(**dict.fromkeys(ChatRequest.unsupported_parameters())) == parse()


def test_both_names_of_the_limit_mean_the_same():
    assert parse(max_tokens=4).max_output_tokens == 4
    assert parse(max_completion_tokens=4).max_output_tokens == 4
    assert parse(max_tokens=4, max_completion_tokens=4).max_output_tokens == 4
    assert parse().max_output_tokens is None
