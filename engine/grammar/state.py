"""Where one output stands in its grammar: which tokens may come next, and which must.

It only ever moves forward, along the target's own path; what looks ahead works on a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from engine.grammar.token_mask import TokenMask

MAX_ERROR_CHARS = 200


class GrammarError(Exception):
    """The grammar cannot be followed any further; the message is for the client."""


class GrammarState:
    """A matcher that stands behind the tokens appended so far."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()

    def copy(self) -> GrammarState:
        return GrammarState(self._matcher.deep_copy(), self._tokenizer)

    def append(self, token_id: int) -> None:
        """Raises GrammarError if the token does not fit, or fitting it costs too much."""
        self._matcher.consume_token(token_id)
        self._check()

    def token_mask(self) -> TokenMask:
        """The tokens that may come next, EOS among them where the output is complete.

        Raises GrammarError where finding them costs too much.
        """
        packed = self._matcher.compute_bitmask()
        self._check()
        return TokenMask(packed, self._tokenizer.vocab_size)

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens, from the first on, can follow."""
        # A limit that is hit while looking ahead must not end the request: hence a copy.
        return self._matcher.deep_copy().validate_tokens(list(token_ids))

    def forced_tokens(self) -> list[int]:
        """The text that must follow, as the tokenizer would write it; the last may be wrong."""
        forced = self._matcher.deep_copy().compute_ff_bytes()
        return self._tokenizer.tokenize_bytes(forced) if forced else []

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(grammar_error_message(self._matcher.get_error()))


def grammar_error_message(report: str) -> str:
    """The line of llguidance's report that says what is wrong, without the state around it."""
    lines = report.split("\n<")[0].splitlines() or [""]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    message = (causes or lines)[0][:MAX_ERROR_CHARS]
    return "Nothing can match it." if message.startswith("NoExtension") else message
