"""Compiles grammars beside the engine's steps, and keeps what was compiled lately.

llguidance does not hold the interpreter's lock while it compiles, so steps go on meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.config import GrammarLimits
from engine.grammar.state import GrammarError, GrammarState

_MAX_CACHED = 16


class GrammarCompiler:
    """One thread that compiles in the order of asking. The tokenizer is read when first needed."""

    def __init__(
        self, load_tokenizer: Callable[[], LLTokenizer], limits: GrammarLimits | None = None
    ) -> None:
        self._load_tokenizer = load_tokenizer
        self._limits = parser_limits(limits or GrammarLimits())
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._compiled: OrderedDict[str, Future[GrammarState]] = OrderedDict()

    def compile(self, grammar: str) -> Future[GrammarState]:
        """The state before the first token, to be copied. Its failure is a GrammarError."""
        if grammar not in self._compiled:
            self._compiled[grammar] = self._thread.submit(self._compile, grammar)
        self._compiled.move_to_end(grammar)
        while len(self._compiled) > _MAX_CACHED:
            self._compiled.popitem(last=False)
        return self._compiled[grammar]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return self._load_tokenizer()

    def _compile(self, grammar: str) -> GrammarState:
        try:
            tokenizer = self._tokenizer
        except Exception as error:
            raise GrammarError("This model's tokenizer cannot be used with a grammar.") from error
        return compile_grammar(grammar, tokenizer, self._limits)


def compile_grammar(grammar: str, tokenizer: LLTokenizer, limits: LLParserLimits) -> GrammarState:
    """Raises GrammarError for a grammar that is wrong or above the limits."""
    return GrammarState(LLMatcher(tokenizer, grammar, log_level=0, limits=limits), tokenizer)


def parser_limits(limits: GrammarLimits) -> LLParserLimits:
    return LLParserLimits(**msgspec.structs.asdict(limits), verbose_errors=False)


def load_tokenizer(
    path: Path, *, vocab_size: int | None = None, eos_token_ids: Sequence[int] = ()
) -> LLTokenizer:
    """A tokenizer.json as grammars need it: the bytes of each token, and which end a text."""
    text = path.read_text()
    return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)
