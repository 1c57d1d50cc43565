"""From `response_format` and `structured_outputs` to a grammar that the engine can follow.

It knows no grammar itself: a process that may be lost at any time looks at them, one by one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec

from app.api.generation_request import GenerationRequest, ResponseFormat, StructuredOutputs
from app.errors import InvalidRequestError, TandemError
from engine.messages import GrammarSource, GrammarVerdict

MAX_SOURCE_BYTES = 256 * 1024
_MAX_LINE_BYTES = 16 * MAX_SOURCE_BYTES
_MAX_CACHED = 64
_TOO_COMPLEX = "It is too complex: it takes too much time or memory."


class GrammarResolver:
    """Refuses with a 400 what is no grammar, is not supported, or costs too much."""

    def __init__(self, tokenizer_json: Path) -> None:
        self._checker = _CheckerProcess(tokenizer_json)
        self._verdicts: OrderedDict[bytes, GrammarVerdict] = OrderedDict()

    async def resolve(self, body: GenerationRequest) -> str | None:
        """What `SamplingParams.grammar` wants; None where the output is free."""
        source = _source(body)
        if source is None:
            return None
        param = "response_format" if body.structured_outputs is None else "structured_outputs"
        if len(source.text.encode()) > MAX_SOURCE_BYTES:
            raise _invalid(param, f"The most is {MAX_SOURCE_BYTES // 1024} KiB.")
        verdict = await self._verdict(source)
        if verdict.error is not None:
            raise _invalid(param, verdict.error)
        return verdict.grammar

    async def close(self) -> None:
        await self._checker.close()

    async def _verdict(self, source: GrammarSource) -> GrammarVerdict:
        key = hashlib.sha256(msgspec.json.encode(source)).digest()
        if key not in self._verdicts:
            self._verdicts[key] = await self._checker.check(source)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > _MAX_CACHED:
            self._verdicts.popitem(last=False)
        return self._verdicts[key]


class _CheckerProcess:
    """Started when first needed, and again after it was lost; checks one grammar at a time."""

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer_json = tokenizer_json
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def check(self, source: GrammarSource) -> GrammarVerdict:
        """A process that is lost over a grammar has passed one of its limits."""
        question = msgspec.json.encode(source)
        async with self._turn:
            line, exit_code = await self._ask(question)
            if exit_code == -signal.SIGKILL:
                # No limit ends it in this way: somebody else did.
                line, _ = await self._ask(question)
        if not line:
            return GrammarVerdict(error=_TOO_COMPLEX)
        return msgspec.json.decode(line, type=GrammarVerdict)

    async def _ask(self, question: bytes) -> tuple[bytes, int | None]:
        """The answer, which is empty where the process has ended, and then its exit code."""
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._start()
        try:
            line = await _converse(process, question)
        except BaseException:
            # What it would say to this must not be read as the answer to the next.
            await self.close()
            raise
        if not line:
            self._process = None
            await process.wait()
        return line, process.returncode

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        # Isolated: modules in the current folder or in PYTHONPATH are nobody's business here.
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "engine.grammar.checker", str(self._tokenizer_json)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
        )
        try:
            is_ready = await _read_line(process) != b""
        except BaseException:
            await self.close()
            raise
        if not is_ready:
            self._process = None
            await process.wait()
            raise TandemError("Grammars cannot be checked at the moment.", code="internal_error")
        return process


async def _converse(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    assert process.stdin is not None
    try:
        process.stdin.write(question + b"\n")
        await process.stdin.drain()
    except ConnectionError:
        return b""
    return await _read_line(process)


async def _read_line(process: asyncio.subprocess.Process) -> bytes:
    """Empty where the process has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    return line if line.endswith(b"\n") else b""


def _source(body: GenerationRequest) -> GrammarSource | None:
    if body.structured_outputs is not None:
        return _structured_source(body.structured_outputs)
    if body.response_format is not None:
        return _format_source(body.response_format)
    return None


def _format_source(response_format: ResponseFormat) -> GrammarSource | None:
    if response_format.type == "text":
        return None
    if response_format.json_schema is None:
        return _schema_source({"type": "object"})
    return _schema_source(response_format.json_schema.json_schema)


def _structured_source(options: StructuredOutputs) -> GrammarSource | None:
    if options.regex is not None:
        return GrammarSource(kind="regex", text=options.regex)
    if options.grammar is not None:
        return GrammarSource(kind="lark", text=options.grammar)
    if options.choice is not None:
        return GrammarSource(kind="choice", text=json.dumps(options.choice, ensure_ascii=False))
    if options.json_schema is not None:
        return _schema_source(options.json_schema)
    return _schema_source({"type": "object"}) if options.json_object else None


def _schema_source(schema: dict[str, Any] | bool | str) -> GrammarSource:
    """A schema is an object; `true` is the one that allows everything."""
    if schema is True:
        schema = {}
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return GrammarSource(kind="json_schema", text=text)


def _invalid(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{param}': {problem}", param=param, code="invalid_grammar")
