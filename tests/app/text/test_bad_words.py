from __future__ import annotations

from app.text.bad_words import bad_word_token_ids


def test_a_word_is_forbidden_at_the_start_and_behind_a_space(byte_tokenizer):
    sequences = bad_word_token_ids(["test"], byte_tokenizer)
    assert sequences == [byte_tokenizer.encode("test"), byte_tokenizer.encode(" test")]


def test_a_spelling_that_ends_in_a_forbidden_one_is_not_listed_again(llama_tokenizer):
    # " c" is "▁▁" and "c" without its own space: it ends like "c".
    sequences = bad_word_token_ids(["c"], llama_tokenizer)
    bare = llama_tokenizer.encode("c", add_special_tokens=False)
    assert sequences == [bare]


def test_a_word_of_spaces_stays_one(byte_tokenizer):
    assert byte_tokenizer.encode("  ") in bad_word_token_ids(["  "], byte_tokenizer)
