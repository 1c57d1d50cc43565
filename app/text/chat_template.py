"""Messages to prompt text, by the Jinja template that comes with the model.

The template runs in Jinja's sandbox, with the helpers that templates on Hugging Face count on. It
may be missing or broken: rendering is refused then, and everything else works.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.errors import InvalidRequestError

MAX_RENDERED_CHARS: Final = 32 * 2**20
MAX_RENDER_SECONDS: Final = 30.0
MAX_BASE: Final = 2**16
MAX_EXPONENT: Final = 64
PROBE: Final = "probe"
RESERVED_NAMES: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"raise_exception", "strftime_now"}
    | set(jinja2.defaults.DEFAULT_NAMESPACE)
)


class ChatTemplate:
    """A compiled template; `problem` says why there is none."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None) -> None:
        self.problem: str | None = None
        self._special_tokens = dict(special_tokens or {})
        self._template: jinja2.Template | None = None
        self._has_developer = source is not None and "developer" in source
        if source is None:
            self.problem = "The model has no chat template; use /v1/completions."
        else:
            self._compile(source)
        self._takes_text, self._takes_parts = self._probe(PROBE), self._probe(_parts(PROBE))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. Each message's `content` is text, or a list of texts.

        With `continue_final_message` it ends where the last message's text does. Raises
        InvalidRequestError where the template refuses the messages, or fails.
        """
        variables = variables or {}
        self._check_names(variables)
        plain = [self._plain(message) for message in messages]
        if not continue_final_message:
            return self._render(plain, add_generation_prompt, variables)
        text = _last_text(plain[-1]["content"])
        # The space shows whether the template strips the text.
        mark = f"continue-{secrets.token_hex(16)} "
        plain[-1] = {**plain[-1], "content": _with_last_text(plain[-1]["content"], text + mark)}
        return _cut(self._render(plain, add_generation_prompt, variables), text, mark)

    def _compile(self, source: str) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            self.problem = f"The chat template is broken (line {error.lineno}): {error.message}"
        except RecursionError:
            self.problem = "The chat template is broken: it is nested too deeply."

    def _probe(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the template shows a content of this form as it should."""
        try:
            text = self._render([{"role": "user", "content": content}], False, {})
        except InvalidRequestError:
            return False
        return PROBE in text and "'type'" not in text

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message in the form that the template reads."""
        role, content = message["role"], message["content"]
        if role == "developer" and not self._has_developer:
            role = "system"
        if self._takes_parts and not (self._takes_text and isinstance(content, str)):
            texts = [content] if isinstance(content, str) else content
            content = [part for text in texts for part in _parts(text)]
        elif not isinstance(content, str):
            content = "\n".join(content)
        return {**message, "role": role, "content": content}

    def _check_names(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name in RESERVED_NAMES or name in self._special_tokens:
                raise InvalidRequestError(
                    "Invalid 'chat_template_kwargs': one of its names is the server's own.",
                    param="chat_template_kwargs",
                )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        if self._template is None:
            raise InvalidRequestError(self.problem or "", param="messages", code="no_chat_template")
        context = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _bounded(self._template, context)
        except jinja2.TemplateError as error:
            reason = error.message or type(error).__name__
        except Exception as error:  # a template fails in as many ways as a program
            reason = type(error).__name__
        raise InvalidRequestError(
            f"The chat template refuses the messages: {reason}",
            param="messages",
            code="chat_template_error",
        )


class GenerationBlock(Extension):
    """`{% generation %}` marks what the model wrote; it matters in training only."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox bounds loops; here products and powers are bounded as well."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= MAX_BASE and abs(right) <= MAX_EXPONENT):
            raise SecurityError("a power is too large")
        for sequence, number in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(number, int):
                _check_length(len(sequence) * number)
        return super().call_binop(context, operator, left, right)


def _check_length(num_chars: int) -> None:
    if num_chars > MAX_RENDERED_CHARS:
        raise SecurityError("the prompt becomes too long")


def _environment() -> jinja2.Environment:
    environment = ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, leaves characters that mean something in HTML as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _bounded(template: jinja2.Template, context: Mapping[str, Any]) -> str:
    deadline = time.monotonic() + MAX_RENDER_SECONDS
    pieces: list[str] = []
    num_chars = 0
    for piece in template.generate(context):
        pieces.append(piece)
        num_chars += len(piece)
        _check_length(num_chars)
        if time.monotonic() > deadline:
            raise SecurityError("it takes too long")
    return "".join(pieces)


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _last_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else content[-1]["text"]


def _with_last_text(content: str | list[dict[str, str]], text: str) -> str | list[dict[str, str]]:
    return text if isinstance(content, str) else [*content[:-1], *_parts(text)]


def _cut(rendered: str, text: str, mark: str) -> str:
    end = rendered.rfind(mark.rstrip())
    if end < 0 or text.strip() not in rendered[:end]:
        raise InvalidRequestError(
            "The chat template changes the last message, so that it cannot be continued.",
            param="continue_final_message",
        )
    is_stripped = not rendered.startswith(mark, end)
    return rendered[:end].rstrip() if is_stripped else rendered[:end]
