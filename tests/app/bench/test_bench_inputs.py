"""What a benchmark is given: prompts and sides, with errors that say where and why."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError

import pytest

from app.bench.bench_error import BenchError
from app.bench.prompt import DEFAULT_PROMPTS, read_prompts
from app.bench.side import default_sides, parse_side

KINDS = {"json", "code", "email", "edit", "repetitive", "open"}
GOOD = '{"kind": "json", "prompt": "{", "max_tokens": 8}'


def test_the_default_prompts_are_of_all_kinds():
    prompts = read_prompts(DEFAULT_PROMPTS)
    assert {prompt.kind for prompt in prompts} == KINDS
    assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_a_number_of_tokens_replaces_that_of_the_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{GOOD}\n\n{GOOD}\n")
    assert [prompt.max_tokens for prompt in read_prompts(path)] == [8, 8]
    assert [prompt.max_tokens for prompt in read_prompts(path, max_tokens=3)] == [3, 3]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "truncated"),
        ('{"kind": "json", "prompt": "{"}', "max_tokens"),
        ('{"kind": "json", "prompt": "", "max_tokens": 8}', "length"),
        ('{"kind": "json", "prompt": "{", "max_tokens": 0}', ">= 1"),
        ('{"kind": "json", "prompt": "{", "max_tokens": 8, "tokens": 1}', "unknown field"),
        ('{"kind": "all", "prompt": "{", "max_tokens": 8}', "last row"),
    ],
    ids=["syntax", "missing", "empty", "zero", "unknown", "all"],
)
def test_each_broken_line_is_named(tmp_path, line, problem):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{line}\n{GOOD}\n{line}\n")
    with pytest.raises(BenchError) as error:
        read_prompts(path)
    first, third = str(error.value).splitlines()
    assert first.startswith(f"{path}, line 1: ")
    assert third.startswith(f"{path}, line 3: ")
    assert problem in first


def test_a_file_that_is_missing_or_empty_is_said(tmp_path):
    with pytest.raises(BenchError, match="No such file"):
        read_prompts(tmp_path / "none")
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(BenchError, match="no prompts"):
        read_prompts(path)


def test_a_side_is_a_name_and_fields():
    fields = {"speculative": {"num_speculative_tokens": 3}}
    side = parse_side(f"short={json.dumps(fields)}")
    assert (side.name, side.fields) == ("short", fields)
    assert [side.name for side in default_sides()] == ["off", "on"]


@pytest.mark.parametrize(
    "text", ["short", "={}", "short={", "short=[]", 'short={"seed": 1}', 'short={"n": 2}'], ids=str
)
def test_what_is_no_side_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        parse_side(text)
