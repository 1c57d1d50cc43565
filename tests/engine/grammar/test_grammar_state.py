"""The state of one grammar over the fake vocabulary: masks, forced text, looking ahead, errors."""

from __future__ import annotations

import re
from functools import partial

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.config import GrammarLimits
from engine.grammar.compiler import GrammarCompiler, load_tokenizer
from engine.grammar.state import GrammarError, GrammarState
from tests.engine.fake_backend import EOS, FakeTokenizer, grammar_compiler, text_of

A, B, C, AB, ABC = 1, 2, 3, 27, 28


def start(regex: str, *token_ids: int) -> GrammarState:
    fresh = grammar_compiler().compile(LLMatcher.grammar_from_regex(regex)).result()
    state = fresh.copy()
    for token_id in token_ids:
        state.append(token_id)
    return state


def allowed(state: GrammarState) -> set[int]:
    return set(state.token_mask().as_bools().nonzero()[0].tolist())


@pytest.mark.parametrize(
    ("regex", "token_ids", "expected"),
    [
        pytest.param("a[bc]d", [], {A, AB}, id="start"),
        pytest.param("a[bc]d", [A], {B, C}, id="second"),
        pytest.param("a?", [], {A, EOS}, id="optional-end"),
        pytest.param("a+", [A], {A, EOS}, id="may-end"),
        pytest.param("a", [A], {EOS}, id="must-end"),
        pytest.param("", [], {EOS}, id="empty"),
        # Forced text is cut into tokens in one way only.
        pytest.param("abcd", [], {ABC}, id="forced"),
    ],
)
def test_the_mask_allows_what_can_still_become_a_match(regex, token_ids, expected):
    assert allowed(start(regex, *token_ids)) == expected


def test_the_mask_is_as_wide_as_the_models_vocabulary_and_padding_is_never_allowed(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|other|>"],
        show_progress=False,
    )
    backend.train_from_iterator([], trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    compiler = GrammarCompiler(
        partial(load_tokenizer, tmp_path / "tokenizer.json", vocab_size=300, eos_token_ids=(0, 1))
    )
    state = compiler.compile("start: /(.|\\n)*/").result()
    assert state.token_mask().as_bools().shape == (300,)
    # Every byte that may begin a character is allowed, and both ends.
    assert {0, 1} < allowed(state) < set(range(258))
    state.append(2)
    state.append(1)
    assert state.is_finished


def test_complete_means_that_it_may_end_and_finished_that_it_must():
    states = [start("ab*c?", *token_ids) for token_ids in ([], [A], [A, C])]
    assert [state.is_complete for state in states] == [False, True, True]
    assert [state.is_finished for state in states] == [False, False, True]


def test_a_special_token_is_never_a_part_of_a_free_text():
    assert EOS not in allowed(start("[^z]*z"))


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [([A, B, C], 3), ([AB, C], 2), ([A, C, B], 1), ([B], 0), ([A, B, C, EOS, A], 4), ([], 0)],
)
def test_a_draft_is_valid_up_to_the_first_token_that_does_not_fit(token_ids, expected):
    state = start("abc")
    assert state.num_valid(token_ids) == expected
    assert allowed(state) == {ABC}


def test_forced_tokens_spell_the_text_that_must_follow_in_the_tokenizers_way():
    assert start("x(abcabz|abcabz)", 24).forced_tokens() == [ABC, AB, 26]
    assert start("[xy]abc").forced_tokens() == []


def test_a_token_that_does_not_fit_is_an_error_and_a_copy_does_not_share_it():
    state = start("abc")
    copy = state.copy()
    with pytest.raises(GrammarError, match="."):
        state.append(C)
    assert allowed(copy) == {ABC}


@pytest.mark.parametrize(
    "grammar", ["", "no grammar", '{"grammars": []}', "start: /(/", "start: x"]
)
def test_a_grammar_that_is_none_fails_with_a_short_message(grammar):
    error = grammar_compiler().compile(grammar).exception()
    assert isinstance(error, GrammarError)
    assert 0 < len(str(error)) <= 200
    assert "\n" not in str(error)


def test_a_grammar_above_the_limits_is_refused():
    compiler = GrammarCompiler(
        lambda: LLTokenizer(FakeTokenizer()), GrammarLimits(initial_lexer_fuel=50)
    )
    many = LLMatcher.grammar_from_regex("|".join(f"a{{{i}}}b{{{i}}}" for i in range(1, 40)))
    assert isinstance(compiler.compile(many).exception(), GrammarError)


def test_a_tokenizer_that_cannot_be_read_fails_the_request_and_not_the_engine():
    def load() -> LLTokenizer:
        raise FileNotFoundError("tokenizer.json")

    error = GrammarCompiler(load).compile("start: /a/").exception()
    assert isinstance(error, GrammarError)
    assert "tokenizer" in str(error)


def test_a_grammar_is_compiled_once_while_it_is_among_the_latest():
    compiler = grammar_compiler()
    first = compiler.compile("start: /a/")
    assert compiler.compile("start: /a/") is first
    for i in range(16):
        compiler.compile(f"start: /b{{{i}}}/")
    assert compiler.compile("start: /a/") is not first


REGEXES = st.recursive(
    st.sampled_from(["a", "b", "c", "[ab]", "abc"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "?", "{1,3}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


@given(regex=REGEXES, choices=st.lists(st.integers(0, 10**6), max_size=12), peek=st.booleans())
def test_every_walk_through_the_masks_spells_a_match_and_looking_ahead_changes_no_mask(
    regex, choices, peek
):
    state, plain, walked = start(regex), start(regex), []
    for choice in choices:
        if peek:
            state.num_valid(state.forced_tokens())
            state.num_valid([A, B, C, AB, ABC])
        candidates = sorted(allowed(state))
        assert candidates == sorted(allowed(plain))
        assert (EOS in candidates) == (re.fullmatch(regex, text_of(walked)) is not None)
        token_id = candidates[choice % len(candidates)]
        if token_id == EOS:
            break
        for each in (state, plain):
            each.append(token_id)
        walked.append(token_id)
        if state.is_finished:
            break
    if state.is_finished:
        assert re.fullmatch(regex, text_of(walked))
