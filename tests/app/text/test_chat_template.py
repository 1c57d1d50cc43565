from __future__ import annotations

import re

import pytest
from chat_templates import CHATML, GEMMA, PARTS, QWEN

from app.errors import InvalidRequestError
from app.text.chat_template import MAX_RENDERED_CHARS, ChatTemplate

HI = {"role": "user", "content": "Hi"}


def refusal(source: str | None, messages=(HI,), **options) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source).render(messages, **options)
    return caught.value


def test_without_a_template_chat_is_refused_and_says_why():
    error = refusal(None)
    assert (error.code, error.param) == ("no_chat_template", "messages")
    assert "no chat template" in error.message


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ a", "{% endif %}", "(" * 2 + "{{" + "(" * 9999]
)
def test_a_broken_template_is_found_when_it_is_read_and_refused_when_it_is_used(source):
    assert ChatTemplate(source).problem is not None
    assert refusal(source).code == "no_chat_template"


def test_what_the_template_says_against_the_messages_is_told():
    error = refusal(GEMMA, [{"role": "system", "content": "a"}, HI])
    assert (error.code, error.param) == ("chat_template_error", "messages")
    assert "System role not supported" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__ }}{{ ''.format.__globals__.x }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.name }}",
        "{% include 'other' %}",
        "{{ range(10000000) | list }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' * 9999999999999 }}",
        "{{ 9999999999999 * [1] }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_misbehaves_is_a_refusal(source):
    assert refusal(source).code == "chat_template_error"


def test_a_prompt_is_bounded():
    source = "{% for i in range(100) %}{{ messages[0].content }}{% endfor %}"
    message = {"role": "user", "content": "x" * (MAX_RENDERED_CHARS // 50)}
    assert "too long" in refusal(source, [message]).message


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "range", "bos_token"]
)
def test_the_servers_own_names_cannot_be_set(name):
    template = ChatTemplate(CHATML, {"bos_token": "<s>"})
    with pytest.raises(InvalidRequestError) as caught:
        template.render([HI], variables={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_texts_are_joined_by_newlines_where_the_template_reads_a_text():
    message = {"role": "user", "content": ["One", "two"]}
    assert ChatTemplate(CHATML).render([message]) == ChatTemplate(CHATML).render(
        [{"role": "user", "content": "One\ntwo"}]
    )


def test_a_text_becomes_a_part_where_the_template_reads_parts_only():
    assert ChatTemplate(PARTS).render([HI]) == "user: Hi\n"
    assert ChatTemplate(QWEN).render([HI]) == "<|im_start|>user*\nHi<|im_end|>\n"


def test_a_developer_is_the_system_where_the_template_knows_no_developer():
    message = {"role": "developer", "content": "Be brief."}
    assert "<|im_start|>system\n" in ChatTemplate(CHATML).render([message])
    knows = CHATML + "{# developer #}"
    assert "<|im_start|>developer\n" in ChatTemplate(knows).render([message])


def test_the_date_is_todays():
    text = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([HI])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", text)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[-1].content[3:] }}",
        "{{ messages[0].role }}",
        "{{ messages[-1].content | upper }}",
    ],
)
def test_a_message_that_the_template_changes_cannot_be_continued(source):
    error = refusal(source, [HI], continue_final_message=True)
    assert error.param == "continue_final_message"


def test_a_continued_message_may_hold_anything_that_looks_like_an_end():
    text = "continue- CONTINUE_FINAL_MESSAGE_TAG <|im_end|> "
    message = {"role": "assistant", "content": text}
    prompt = ChatTemplate(CHATML).render([HI, message], continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\n" + text)
