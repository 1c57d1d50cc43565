"""From words that must not occur to the token sequences that the engine forbids."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.tokenizer import Tokenizer


def bad_word_token_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Each word as it is written at the start of a text, and behind a space."""
    sequences: list[list[int]] = []
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            if token_ids and not any(_ends_with(token_ids, known) for known in sequences[-1:]):
                sequences.append(token_ids)
    return sequences


def _ends_with(token_ids: list[int], end: list[int]) -> bool:
    """Whoever never writes `end` never writes `token_ids` either."""
    return token_ids[len(token_ids) - len(end) :] == end
