"""Text to token ids and back, over a model folder's tokenizer.json. Knows no model, no request."""

from __future__ import annotations

import re
from pathlib import Path

import tokenizers
from tokenizers import decoders

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# A normalizer may compose characters: at most four become one.
MAX_COMPOSED_CHARS = 4
FIM_TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
)


class Tokenizer:
    """A Hugging Face tokenizer, with the bytes of each token."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added_tokens = backend.get_added_tokens_decoder()
        self._special = {token.content for token in added_tokens.values() if token.special}
        self._texts: dict[int, str] = {}
        self._whole_texts: dict[bool, dict[int, str | None]] = {True: {}, False: {}}
        self._byte_values = _byte_level_values()
        self.is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        # What the post-processor puts before every text: BOS, or nothing.
        self.prefix_token_ids: list[int] = backend.encode("").ids
        self.max_chars_per_token = _max_chars_per_token(backend)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        return cls(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with BOS where the tokenizer's own post-processor adds it."""
        # A batch, unlike a single text, is read without holding up the other threads.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoding.ids
        return token_ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        # As in `encode`, a batch leaves the other threads alone.
        [text] = self._backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def special_token_id(self, text: str) -> int | None:
        """The special token that is written so, if there is one."""
        token_id: int | None = self._backend.token_to_id(text) if text in self._special else None
        return token_id

    def fim_token_ids(self) -> tuple[int, int, int] | None:
        """What stands before the prefix, the suffix and the middle, if the model fills in gaps."""
        for names in FIM_TOKENS:
            prefix, suffix, middle = map(self._backend.token_to_id, names)
            if prefix is not None and suffix is not None and middle is not None:
                return prefix, suffix, middle
        return None

    def is_dropped(self, token_id: int, *, skip_special_tokens: bool = True) -> bool:
        """Whether `decode` passes over the token: ids that have no piece, and special tokens."""
        piece = self._backend.id_to_token(token_id)
        return piece is None or (skip_special_tokens and piece in self._special)

    def is_byte_fallback(self, token_id: int) -> bool:
        """Whether the token is one raw byte of a vocabulary made of characters, as Llama 2's."""
        piece = self._backend.id_to_token(token_id)
        return not self.is_byte_level and piece is not None and bool(BYTE_PIECE.fullmatch(piece))

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes; none for ids outside the vocabulary."""
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if not self.is_byte_level:
            byte = BYTE_PIECE.fullmatch(piece)
            return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
        try:
            return bytes([self._byte_values[character] for character in piece])
        except KeyError:  # an added token, written as it is
            return piece.encode()

    def whole_text(self, token_id: int, *, skip_special_tokens: bool = True) -> str | None:
        """What `decode` makes of the token's bytes; None if they are no whole characters."""
        texts = self._whole_texts[skip_special_tokens]
        if token_id not in texts:
            dropped = self.is_dropped(token_id, skip_special_tokens=skip_special_tokens)
            texts[token_id] = _decoded(b"" if dropped else self.token_bytes(token_id))
        return texts[token_id]

    def token_text(self, token_id: int) -> str:
        r"""The token as logprobs show it: text, or `bytes:\xe4` if it is a part of a character."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = _shown(self.token_bytes(token_id))
        return text

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether every token id means the same to both."""
        ours, theirs = self._backend, other._backend
        return ours.get_vocab() == theirs.get_vocab() and {
            token_id: token.content for token_id, token in ours.get_added_tokens_decoder().items()
        } == {
            token_id: token.content for token_id, token in theirs.get_added_tokens_decoder().items()
        }


def _decoded(token_bytes: bytes) -> str | None:
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return None


def _shown(token_bytes: bytes) -> str:
    text = _decoded(token_bytes)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes) if text is None else text


def _max_chars_per_token(backend: tokenizers.Tokenizer) -> int:
    longest = max((len(piece) for piece in backend.get_vocab()), default=1)
    return longest if backend.normalizer is None else longest * MAX_COMPOSED_CHARS


def _byte_level_values() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    values = {chr(byte): byte for byte in printable}
    return values | {chr(0x100 + index): byte for index, byte in enumerate(others)}
