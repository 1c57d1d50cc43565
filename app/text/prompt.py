"""One prompt of a request, as text and as token ids."""

from __future__ import annotations

from dataclasses import dataclass

from app.text.detokenizer import create_detokenizer
from app.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what the client sent, if it sent text and all of it is in `token_ids`.

    `may_have_prefix` says that a BOS at the start is the tokenizer's.
    """

    token_ids: list[int]
    text: str | None = None
    may_have_prefix: bool = True

    def echo_text(self, tokenizer: Tokenizer) -> str:
        """The prompt as `echo` returns it; a BOS that no client wrote is left out."""
        if self.text is not None:
            return self.text
        token_ids = self.token_ids[self._num_prefix_tokens(tokenizer) :]
        return tokenizer.decode(token_ids, skip_special_tokens=False)

    def text_offsets(self, tokenizer: Tokenizer) -> list[int]:
        """The character in which each token begins."""
        num_prefix_tokens = self._num_prefix_tokens(tokenizer)
        offsets = [0] * num_prefix_tokens
        detokenizer = create_detokenizer(tokenizer, skip_special_tokens=False)
        for token_id in self.token_ids[num_prefix_tokens:]:
            detokenizer.append(token_id)
            offsets.append(detokenizer.token_offset)
        # A normalizer can make the tokens' text longer than what was sent.
        num_chars = len(self.echo_text(tokenizer))
        return [min(offset, num_chars) for offset in offsets]

    def truncated(self, max_num_tokens: int, tokenizer: Tokenizer) -> Prompt:
        """The last tokens; a BOS of the tokenizer's stays, and counts."""
        if len(self.token_ids) <= max_num_tokens:
            return self
        prefix = self.token_ids[: self._num_prefix_tokens(tokenizer)][: max_num_tokens - 1]
        last = self.token_ids[len(self.token_ids) - max_num_tokens + len(prefix) :]
        return Prompt(prefix + last, may_have_prefix=self.may_have_prefix)

    def _num_prefix_tokens(self, tokenizer: Tokenizer) -> int:
        prefix = tokenizer.prefix_token_ids if self.may_have_prefix else []
        return len(prefix) if self.token_ids[: len(prefix)] == prefix else 0
