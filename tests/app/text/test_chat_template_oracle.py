"""Rendering against `apply_chat_template` of transformers."""

from __future__ import annotations

import pytest
from chat_templates import CHAT_TEMPLATES, QWEN
from transformers import PreTrainedTokenizerFast

from app.errors import InvalidRequestError
from app.text.chat_template import ChatTemplate

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<img>"}

USER = {"role": "user", "content": " Hi 😀 <b>&'\"\n there  "}
ASSISTANT = {"role": "assistant", "content": "  Hello,\n\nyou. \n"}
SYSTEM = {"role": "system", "content": "Be brief.\x00"}
TOOL = {"role": "tool", "tool_call_id": "a1", "content": "{é}"}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, USER],
    "all": [SYSTEM, USER, ASSISTANT, {**USER, "name": "Ann"}, ASSISTANT],
    "tool": [USER, TOOL],
}
# By the templates' own rules.
REFUSED = {("gemma", "system"), ("gemma", "all")}


@pytest.fixture(scope="session")
def oracle(byte_tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer._backend,
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<img>"},
    )


def rendered(source: str, messages: list[dict], **options) -> str | None:
    """None where it is refused."""
    try:
        return ChatTemplate(source, SPECIAL_TOKENS).render(messages, **options)
    except InvalidRequestError:
        return None


def expected(oracle, source: str, messages: list[dict], **options) -> str | None:
    try:
        return oracle.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    except Exception:  # transformers passes on whatever the template raises
        return None


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", sorted(CHAT_TEMPLATES.keys() - {"parts"}))
def test_a_prompt_is_what_transformers_makes(oracle, name, conversation, add_generation_prompt):
    source, messages = CHAT_TEMPLATES[name], CONVERSATIONS[conversation]
    options = {"add_generation_prompt": add_generation_prompt}
    prompt = expected(oracle, source, messages, **options)
    assert rendered(source, messages, **options) == prompt
    assert (prompt is None) == ((name, conversation) in REFUSED)


@pytest.mark.parametrize("content", ["He", "He ", " He\n\n", "\tHe said </s> \n", ""], ids=repr)
@pytest.mark.parametrize("role", ["assistant", "user"])
@pytest.mark.parametrize("name", sorted(CHAT_TEMPLATES.keys() - {"parts"}))
def test_a_continued_prompt_is_what_transformers_makes(oracle, name, role, content):
    source = CHAT_TEMPLATES[name]
    before = [USER] if role == "assistant" else [USER, ASSISTANT]
    messages = [*before, {"role": role, "content": content}]
    prompt = expected(oracle, source, messages, continue_final_message=True)
    assert prompt is not None
    assert rendered(source, messages, continue_final_message=True) == prompt


@pytest.mark.parametrize("options", [{}, {"continue_final_message": True}], ids=str)
@pytest.mark.parametrize("name", ["parts", "qwen"])
def test_parts_are_given_to_a_template_that_reads_them(oracle, name, options):
    parts = [{"type": "text", "text": text} for text in ("One ", "two ")]
    content = [part["text"] for part in parts]
    source = CHAT_TEMPLATES[name]
    prompt = expected(oracle, source, [{"role": "user", "content": parts}], **options)
    assert prompt is not None
    assert rendered(source, [{"role": "user", "content": content}], **options) == prompt


def test_variables_of_the_template_can_be_set(oracle):
    variables = {"enable_thinking": False}
    prompt = expected(oracle, QWEN, [USER], add_generation_prompt=True, **variables)
    assert "<think>" in prompt
    options = {"add_generation_prompt": True, "variables": variables}
    assert rendered(QWEN, [USER], **options) == prompt
