"""The prompts of a benchmark: JSON lines with kind, prompt, max_tokens and, if wanted, an id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from app.bench.bench_error import BenchError

DEFAULT_PROMPTS = Path(__file__).with_name("prompts.jsonl")
ALL_KINDS = "all"
NUM_CHARS_SHOWN = 40

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    kind: Text
    prompt: Text
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    id: str = ""

    def __post_init__(self) -> None:
        if self.kind == ALL_KINDS:
            raise ValueError(f"the kind {ALL_KINDS!r} is the name of the last row of the tables")

    @property
    def name(self) -> str:
        """The id, else how it begins."""
        return self.id or repr(self.prompt[:NUM_CHARS_SHOWN])


def read_prompts(path: Path, *, max_tokens: int | None = None) -> list[Prompt]:
    """All of them; `max_tokens` replaces the file's. BenchError has a line for each problem."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    problems: list[str] = []
    prompts = list(_parsed(lines, path, problems))
    if problems:
        raise BenchError("\n".join(problems))
    if not prompts:
        raise BenchError(f"{path} has no prompts")
    if max_tokens is None:
        return prompts
    return [msgspec.structs.replace(prompt, max_tokens=max_tokens) for prompt in prompts]


def _parsed(lines: list[bytes], path: Path, problems: list[str]) -> Iterator[Prompt]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Prompt)
        except msgspec.DecodeError as error:
            problems.append(f"{path}, line {number}: {error}")
