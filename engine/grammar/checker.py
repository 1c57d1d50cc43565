"""Checks clients' grammars: `python -m engine.grammar.checker TOKENIZER_JSON`, for the front end.

A process of its own, since a hostile grammar can take any time and memory, or the process itself:
it ends when a limit is passed, and on end-of-file. One line in, one line out, after the first,
which says that it is ready.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from engine.config import GrammarLimits
from engine.grammar.compiler import compile_grammar, load_tokenizer, parser_limits
from engine.grammar.state import GrammarError, GrammarState, grammar_error_message
from engine.messages import GrammarSource, GrammarVerdict

_MAX_CPU_SECONDS = 1.0
_MAX_BYTES = 256 * 2**20
# A quarter of what the engine's threads have: rules that nest too deep end this process, not that.
_STACK_BYTES = 2 * 2**20
_MAX_STEP_SECONDS = 0.05
_NUM_WALKS = 4
_NUM_WALK_TOKENS = 64
_NUM_CANDIDATES = 6
_LOOP_PROBABILITY = 0.95


class GrammarChecker:
    """Compiles as the engine will, and follows the grammar on a few random walks."""

    def __init__(self, tokenizer: LLTokenizer, limits: LLParserLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def check(self, source: GrammarSource) -> GrammarVerdict:
        try:
            grammar = _grammar(source)
            self._try(grammar)
        except GrammarError as error:
            return GrammarVerdict(error=str(error))
        except ValueError as error:
            return GrammarVerdict(error=grammar_error_message(str(error)))
        return GrammarVerdict(grammar=grammar)

    def _try(self, grammar: str) -> None:
        """Some grammars are small and compile fast, and cost too much in the middle of a text."""
        fresh = compile_grammar(grammar, self._tokenizer, self._limits)
        for seed in range(_NUM_WALKS):
            self._walk(fresh.copy(), random.Random(seed))

    def _walk(self, state: GrammarState, choices: random.Random) -> None:
        for _ in range(_NUM_WALK_TOKENS):
            token_ids = self._text_tokens(state)
            if state.is_finished or not len(token_ids):
                return
            state.append(_next_token(state, token_ids, choices))

    def _text_tokens(self, state: GrammarState) -> npt.NDArray[np.int64]:
        started = time.process_time()
        allowed = state.token_mask().as_bools()
        if time.process_time() - started > _MAX_STEP_SECONDS:
            raise GrammarError("It is too complex: one token takes too long.")
        allowed[self._tokenizer.eos_tokens] = False
        return np.flatnonzero(allowed)


def _next_token(
    state: GrammarState, token_ids: npt.NDArray[np.int64], choices: random.Random
) -> int:
    """Mostly one that may be repeated: what is costly about a grammar is deep inside its loops."""
    candidates = [int(choices.choice(token_ids)) for _ in range(_NUM_CANDIDATES)]
    if choices.random() < _LOOP_PROBABILITY:
        for token_id in candidates:
            if state.num_valid([token_id] * 3) == 3:
                return token_id
    return candidates[0]


def _grammar(source: GrammarSource) -> str:
    """In llguidance's JSON form. Raises ValueError for what is no such source at all."""
    match source.kind:
        case "json_schema":
            return _from_schema(source.text)
        case "regex":
            return LLMatcher.grammar_from_regex(source.text)
        case "choice":
            return _lark("start: " + " | ".join(map(_quoted, json.loads(source.text))))
        case "lark":
            return _lark(_as_lark(source.text))


def _from_schema(schema: str) -> str:
    """JSON on one line, as Python writes it: in a free layout every space would be a choice."""
    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
            "lenient": False,
        },
    )


def _as_lark(text: str) -> str:
    """GBNF, which llama.cpp's users have, is understood as well."""
    try:
        return any_to_lark(text)
    except Exception as error:
        raise GrammarError(grammar_error_message(str(error))) from error


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _serve(checker: GrammarChecker) -> None:
    _answer(b"ready")
    for line in sys.stdin.buffer:
        # The signal's default action ends the process, whatever it is in the middle of.
        signal.setitimer(signal.ITIMER_PROF, _MAX_CPU_SECONDS)
        verdict = checker.check(msgspec.json.decode(line, type=GrammarSource))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(msgspec.json.encode(verdict))


def _answer(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _limit_memory() -> None:
    """Above what the process has by now."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    max_bytes = num_pages * resource.getpagesize() + _MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = load_tokenizer(Path(sys.argv[1]))
    checker = GrammarChecker(tokenizer, parser_limits(GrammarLimits()))
    _limit_memory()
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(checker,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
