from __future__ import annotations

import tokenizers
from tokenizers import models

from app.text.tokenizer import Tokenizer


def tokenizer_of(*pieces: str) -> Tokenizer:
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return Tokenizer(tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=pieces[0])))


def test_bos_is_added_where_the_tokenizer_itself_adds_it(byte_tokenizer, llama_tokenizer):
    assert llama_tokenizer.encode("a")[0] == 1
    assert llama_tokenizer.prefix_token_ids == [1]
    assert byte_tokenizer.prefix_token_ids == []


def test_a_token_of_whole_characters_is_shown_as_text(byte_tokenizer):
    [token_id] = byte_tokenizer.encode("A")
    assert byte_tokenizer.token_text(token_id) == "A"


def test_a_token_inside_a_character_is_shown_as_bytes(tokenizer):
    shown = [tokenizer.token_text(token_id) for token_id in tokenizer.encode("語")]
    assert "bytes:\\x9e" in shown


def test_a_special_token_is_shown_by_its_name(byte_tokenizer):
    assert byte_tokenizer.token_text(0) == "<|end|>"


def test_the_bytes_of_a_text_are_those_of_its_tokens(byte_tokenizer):
    text = "a <x y>b 好\n"
    token_ids = byte_tokenizer.encode(text)
    assert b"".join(map(byte_tokenizer.token_bytes, token_ids)) == text.encode()


def test_ids_outside_the_vocabulary_have_no_bytes(tokenizer):
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""


def test_vocabularies_are_compared_id_by_id():
    ours = tokenizer_of("<unk>", "a", "b")
    assert ours.same_vocabulary(tokenizer_of("<unk>", "a", "b"))
    assert not ours.same_vocabulary(tokenizer_of("<unk>", "b", "a"))
    assert not ours.same_vocabulary(tokenizer_of("<unk>", "a", "b", "c"))


def test_a_tokenizer_is_read_from_a_model_folder(tmp_path):
    tokenizer_of("<unk>", "a")._backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).vocab_size == 2
