from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.detokenizer import create_detokenizer
from app.text.tokenizer import Tokenizer

# Beyond the vocabularies too: a model's output layer is often padded.
token_id_lists = st.lists(st.integers(0, 370), max_size=20)


def read(tokenizer: Tokenizer, token_ids: list[int], **options: object) -> list[str]:
    detokenizer = create_detokenizer(tokenizer, **options)
    pieces = [detokenizer.append(token_id) for token_id in token_ids]
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("skip_special_tokens", [True, False], ids=["skip", "keep"])
@given(data=st.data())
def test_the_pieces_of_any_ids_are_their_decoding(
    byte_tokenizer, llama_tokenizer, skip_special_tokens, data
):
    tokenizer = data.draw(st.sampled_from([byte_tokenizer, llama_tokenizer]))
    token_ids = data.draw(token_id_lists)
    pieces = read(tokenizer, token_ids, skip_special_tokens=skip_special_tokens)
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    assert "".join(pieces) == whole


@given(text=st.text(max_size=20))
def test_any_text_comes_back_from_its_tokens(byte_tokenizer, text):
    assert "".join(read(byte_tokenizer, byte_tokenizer.encode(text))) == text


@given(text=st.text(max_size=12))
def test_a_token_begins_in_the_character_that_holds_its_first_byte(byte_tokenizer, text):
    detokenizer = create_detokenizer(byte_tokenizer)
    before = b""
    for token_id in byte_tokenizer.encode(text):
        detokenizer.append(token_id)
        assert detokenizer.token_offset == len(before.decode(errors="ignore"))
        before += byte_tokenizer.token_bytes(token_id)


def test_a_token_behind_a_broken_character_begins_behind_its_replacement(byte_tokenizer):
    [first, *_] = [i for i in range(256) if byte_tokenizer.token_bytes(i) == b"\xf0"]
    [letter] = byte_tokenizer.encode("A")
    detokenizer = create_detokenizer(byte_tokenizer)
    assert [detokenizer.append(first), detokenizer.append(letter)] == ["", "\ufffdA"]
    assert detokenizer.token_offset == 1


def test_a_split_character_is_held_back_until_it_is_complete(byte_tokenizer):
    token_ids = byte_tokenizer.encode("🙈")
    assert len(token_ids) > 1
    assert read(byte_tokenizer, token_ids) == [*[""] * (len(token_ids) - 1), "🙈", ""]


def test_a_cut_character_is_replaced_at_the_end(byte_tokenizer):
    token_ids = byte_tokenizer.encode("🙈")[:-1]
    assert "".join(read(byte_tokenizer, token_ids)) == "\ufffd"


def test_bytes_of_llama_are_held_back_until_their_run_ends(llama_tokenizer):
    token_ids = llama_tokenizer.encode("语a")[2:]
    assert read(llama_tokenizer, token_ids) == ["", "", "", "语a", ""]


def test_a_space_between_prompt_and_output_is_kept(llama_tokenizer):
    prompt, output = llama_tokenizer.encode("he"), llama_tokenizer.encode("llo")[1:]
    assert read(llama_tokenizer, output, context=prompt)[0] == " "
