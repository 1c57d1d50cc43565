"""From response_format and structured_outputs to grammars, over the real checking process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.api.completion_request import CompletionRequest
from app.errors import InvalidRequestError, TandemError
from app.text.grammar import MAX_SOURCE_BYTES, GrammarResolver


@pytest.fixture(scope="module")
def tokenizer_json(byte_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_tokenizer._backend.save(str(path))
    return path


@pytest.fixture
async def resolver(tokenizer_json: Path) -> AsyncIterator[GrammarResolver]:
    resolver = GrammarResolver(tokenizer_json)
    yield resolver
    await resolver.close()


def body(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


def schema_body(schema: Any) -> CompletionRequest:
    return body(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )


def structured(**fields: Any) -> CompletionRequest:
    return body(structured_outputs=fields)


def lark(text: str) -> CompletionRequest:
    return structured(grammar=text)


async def problem(resolver: GrammarResolver, request: CompletionRequest) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        await resolver.resolve(request)
    assert caught.value.code == "invalid_grammar"
    is_structured = request.structured_outputs is not None
    assert caught.value.param == ("structured_outputs" if is_structured else "response_format")
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"json_object": False}},
    ],
)
async def test_a_free_output_has_no_grammar_and_needs_no_process(fields):
    assert await GrammarResolver(Path("/nowhere")).resolve(body(**fields)) is None


async def test_every_form_becomes_a_grammar(resolver):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bodies = [
        body(response_format={"type": "json_object"}),
        schema_body(schema),
        schema_body(True),
        structured(json=schema),
        structured(json=json.dumps(schema)),
        structured(json_object=True),
        structured(regex="^[0-9]{3}-[a-z]+$"),
        structured(regex="a/b\\/c"),
        structured(choice=["yes", 'a "quoted" \\ one', "two\nlines", "é ☃"]),
        lark('start: "a" | "b" /x+/'),
        lark('root ::= "a" | "b" [0-9]+'),
        lark("start: %json {}"),
    ]
    for each in bodies:
        grammar = await resolver.resolve(each)
        assert grammar is not None
        assert json.loads(grammar)["grammars"]


async def test_the_two_names_of_one_wish_give_one_grammar(resolver):
    schema = {"type": "array", "items": {"type": "boolean"}}
    first = await resolver.resolve(schema_body(schema))
    assert first == await resolver.resolve(structured(json=schema))
    any_object = await resolver.resolve(body(response_format={"type": "json_object"}))
    assert any_object == await resolver.resolve(structured(json_object=True))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "http://localhost:1/schema"}, "not present"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum"),
        ({"enum": []}, "empty"),
        ({"not": {}, "x-guidance": {"lenient": True}}, "not"),
        (False, "object"),
    ],
)
async def test_a_schema_that_cannot_be_followed_is_refused_and_says_why(resolver, schema, named):
    assert named in (await problem(resolver, schema_body(schema))).message


@pytest.mark.parametrize(
    "request_body",
    [
        structured(json="{"),
        structured(json="3"),
        structured(regex="("),
        structured(regex="(a)\\1"),
        lark(""),
        lark("hello"),
        lark("root ::= ((("),
        lark("start: unknown_rule"),
        lark("start: /(/"),
        lark('{"grammars": [{"json_schema": {}}]}'),
    ],
)
async def test_what_is_no_grammar_is_refused_with_a_short_message(resolver, request_body):
    error = await problem(resolver, request_body)
    assert len(error.message) < 260


def deep(num_levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(num_levels):
        schema = {"type": "array", "items": schema}
    return schema


REPEATED = "((a{0,100000}){0,100000}){0,100000}"
CHAIN = "\n".join(f'r{i}: "x" r{i + 1}' for i in range(5000))
CYCLE = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % 50}"} for i in range(50)}
MANY_OBJECTS = [{"type": "object", "properties": {f"p{i}": {}}} for i in range(4)]
BOMBS = {
    "nested_repetition": structured(regex=REPEATED),
    "nested_repetition_in_a_schema": schema_body({"type": "string", "pattern": f"^{REPEATED}$"}),
    "nested_repetition_in_lark": lark(f"start: {REPEATED.replace('a', 'x')}\nx: /a/"),
    "many_objects_at_once": schema_body({"allOf": [{"anyOf": MANY_OBJECTS}] * 12}),
    "a_wide_choice": structured(choice=[f"option {i}" for i in range(100_000)]),
    "a_huge_enum": schema_body({"enum": [f"value {i}" for i in range(100_000)]}),
    "a_huge_text": schema_body({"const": "x" * 1_000_000}),
    "deep_nesting": schema_body(deep(500)),
    "a_cycle_of_references": schema_body({"$defs": CYCLE, "$ref": "#/$defs/d0"}),
    "a_chain_of_rules_that_overflows_the_stack": lark(f'start: r0\n{CHAIN}\nr5000: "a"'),
    "common_multiples_that_take_forever": schema_body(
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949, 9941)]}
    ),
    "a_large_unicode_class": structured(regex=r"(\p{L}{0,1000}\p{N}{0,1000}){0,1000}"),
    "nested_brackets": structured(regex="(" * 5000 + "a" + ")" * 5000),
    "nested_brackets_in_gbnf": lark("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_refused_and_the_next_grammar_is_not(resolver, name):
    """vLLM: a schema with nested {0,100000} stalls the server."""
    assert len((await problem(resolver, BOMBS[name])).message) < 300
    assert await resolver.resolve(structured(regex="[0-9]+"))


async def test_other_work_goes_on_while_a_bomb_is_checked(resolver):
    """vLLM: a schema with nested {0,100000} stalls the server."""

    async def other_work() -> None:
        for _ in range(100):
            await asyncio.sleep(0.001)

    bomb = asyncio.ensure_future(problem(resolver, BOMBS["common_multiples_that_take_forever"]))
    other = asyncio.ensure_future(other_work())
    await asyncio.wait([bomb, other], return_when=asyncio.FIRST_COMPLETED)
    assert other.done()
    assert not bomb.done()
    await bomb


async def test_a_source_is_bounded(resolver):
    error = await problem(resolver, structured(regex="a" * (MAX_SOURCE_BYTES + 1)))
    assert "256 KiB" in error.message


async def test_a_verdict_is_remembered(tokenizer_json, tmp_path):
    path = Path(shutil.copy(tokenizer_json, tmp_path))
    resolver = GrammarResolver(path)
    grammar = await resolver.resolve(structured(regex="[a-z]+"))
    error = await problem(resolver, structured(regex="("))
    await resolver.close()
    os.unlink(path)
    assert await resolver.resolve(structured(regex="[a-z]+")) == grammar
    assert (await problem(resolver, structured(regex="("))).message == error.message


def checker_pids() -> list[int]:
    """Those that this process has started and that still run."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [int(pid) for pid, command in commands.items() if b"engine.grammar.checker" in command]


async def test_a_checker_that_was_killed_is_started_again_and_blames_nobody(resolver):
    assert await resolver.resolve(structured(regex="a"))
    [pid] = checker_pids()
    os.kill(pid, signal.SIGKILL)
    assert await resolver.resolve(structured(regex="b"))
    assert checker_pids() != [pid]


async def test_closing_ends_the_checker(resolver):
    assert await resolver.resolve(structured(regex="a"))
    assert len(checker_pids()) == 1
    await resolver.close()
    assert checker_pids() == []


async def test_a_request_that_is_cancelled_does_not_leave_its_answer_to_the_next(resolver):
    assert await resolver.resolve(structured(regex="a"))
    slow = asyncio.ensure_future(resolver.resolve(BOMBS["common_multiples_that_take_forever"]))
    await asyncio.sleep(0.01)
    slow.cancel()
    await asyncio.wait([slow])
    grammar = await resolver.resolve(structured(regex="[xyz]"))
    assert grammar is not None
    assert "[xyz]" in grammar


async def test_without_a_readable_tokenizer_the_fault_is_the_servers():
    resolver = GrammarResolver(Path("/nowhere"))
    with pytest.raises(TandemError) as caught:
        await resolver.resolve(structured(regex="a"))
    assert caught.value.status_code == 500
