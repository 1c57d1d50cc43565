"""Token ids to text, one token at a time, so that what was said never changes later.

The law: all pieces together are `Tokenizer.decode` of all ids, whatever the ids are.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from app.text.tokenizer import Tokenizer


class IncrementalDetokenizer(Protocol):
    """`num_chars` have been released; `token_offset` is the character in which the token that was
    appended last begins."""

    num_chars: int
    token_offset: int

    def append(self, token_id: int) -> str:
        """The text that this token makes certain."""
        ...

    def finish(self) -> str:
        """The rest, when no token follows."""
        ...


def create_detokenizer(
    tokenizer: Tokenizer, *, context: Sequence[int] = (), skip_special_tokens: bool = True
) -> IncrementalDetokenizer:
    """The detokenizer for text that follows the tokens of `context`."""
    if tokenizer.is_byte_level:
        return ByteLevelDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return WindowDetokenizer(tokenizer, context=context, skip_special_tokens=skip_special_tokens)


class ByteLevelDetokenizer:
    """For vocabularies of bytes: a UTF-8 decoder that waits for the rest of a character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_character = False
        self.num_chars = 0
        self.token_offset = 0

    def append(self, token_id: int) -> str:
        text = None
        if not self._is_inside_character:
            text = self._tokenizer.whole_text(
                token_id, skip_special_tokens=self._skip_special_tokens
            )
        if text is None:
            return self._append_bytes(token_id)
        self.token_offset = self.num_chars
        self.num_chars += len(text)
        return text

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._is_inside_character = False
        self.num_chars += len(text)
        return text

    def _append_bytes(self, token_id: int) -> str:
        dropped = self._tokenizer.is_dropped(
            token_id, skip_special_tokens=self._skip_special_tokens
        )
        token_bytes = b"" if dropped else self._tokenizer.token_bytes(token_id)
        pending, _ = self._decoder.getstate()
        first = self._decoder.decode(token_bytes[:1])
        # A first byte that does not go on with the pending character turns that into one U+FFFD.
        breaks_character = pending and first and first.encode() != pending + token_bytes[:1]
        self.token_offset = self.num_chars + (1 if breaks_character else 0)
        text = first + self._decoder.decode(token_bytes[1:])
        pending, _ = self._decoder.getstate()
        self._is_inside_character = bool(pending)
        self.num_chars += len(text)
        return text


class WindowDetokenizer:
    """For every other vocabulary: decode the last tokens with and without the new ones.

    Bytes of a character are held back until a token that is no byte ends their run, because the
    whole run is read as one: a bad byte at its end changes its beginning.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        last = list(context[-1:])
        usable = last and not tokenizer.is_byte_fallback(last[0]) and not self._is_dropped(last[0])
        self._context = last if usable else []
        self._window = list(self._context)
        self._pending: list[int] = []
        self._token_ids: list[int] = []
        self.num_chars = 0
        self.token_offset = 0

    def append(self, token_id: int) -> str:
        self.token_offset = self.num_chars + len(self._new_text().rstrip("\ufffd"))
        if self._is_dropped(token_id):
            return ""
        self._token_ids.append(token_id)
        self._pending.append(token_id)
        if self._tokenizer.is_byte_fallback(token_id):
            return ""
        text = self._new_text()
        if text.endswith("\ufffd"):
            return ""
        self._window = self._pending if text else self._window + self._pending
        self._pending = []
        self.num_chars += len(text)
        return text

    def finish(self) -> str:
        text = self._decode(self._context + self._token_ids)
        text = text[len(self._decode(self._context)) + self.num_chars :]
        self.num_chars += len(text)
        return text

    def _new_text(self) -> str:
        if not self._pending:
            return ""
        return self._decode(self._window + self._pending)[len(self._decode(self._window)) :]

    def _is_dropped(self, token_id: int) -> bool:
        return self._tokenizer.is_dropped(token_id, skip_special_tokens=self._skip_special_tokens)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
