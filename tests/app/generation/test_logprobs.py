from __future__ import annotations

from app.generation.logprobs import LogprobEntry, logprobs_arrays, prompt_logprobs
from engine.messages import TokenLogprobs

NAMES = {1: "a", 2: "a", 3: "b", 4: "c"}


def test_the_tokens_own_logprob_is_kept_where_another_token_looks_the_same():
    """lm-eval compares the two as floats."""
    entry = LogprobEntry(2, -2.5, [(1, -0.5), (3, -1.0)], 0)
    arrays = logprobs_arrays([entry], NAMES.__getitem__)
    assert arrays["token_logprobs"] == [-2.5]
    assert arrays["top_logprobs"] == [{"a": -2.5, "b": -1.0}]


def test_the_most_likely_of_two_tokens_that_look_the_same_is_kept():
    entry = LogprobEntry(4, -3.0, [(1, -0.5), (2, -0.75)], 0)
    arrays = logprobs_arrays([entry], NAMES.__getitem__)
    assert arrays["top_logprobs"] == [{"a": -0.5, "c": -3.0}]


def test_top_logprobs_are_listed_from_the_most_likely_down():
    entry = LogprobEntry(3, -1.0, [(1, -0.5), (3, -1.0), (4, -2.0)], 0)
    arrays = logprobs_arrays([entry], NAMES.__getitem__)
    assert [*arrays["top_logprobs"][0]] == ["a", "b", "c"]


def test_a_prompt_token_keeps_its_rank_among_the_top_ones():
    found = [TokenLogprobs(3, -1.0, [(1, -0.5), (3, -1.0)], rank=2)]
    [first, entry] = prompt_logprobs(found, 2, NAMES.__getitem__)
    assert first is None
    ranks = {token_id: shown["rank"] for token_id, shown in entry.items()}
    assert ranks == {"3": 2, "1": 1}


def test_impossible_tokens_of_a_prompt_have_a_number_in_json():
    found = [TokenLogprobs(3, float("-inf"), [], rank=9)]
    assert prompt_logprobs(found, 0, NAMES.__getitem__)[1]["3"]["logprob"] == -9999.0
