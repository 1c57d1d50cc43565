from __future__ import annotations

import pytest

from app.api.completion_request import CompletionRequest
from app.generation.choice_decoder import ChoiceDecoder
from app.text.prompt import Prompt
from engine.messages import RequestOutput, TokenLogprobs

EOS = 0


@pytest.fixture
def decode(byte_tokenizer):
    """Runs one choice over the tokens of some texts, one step for each text."""

    def run(*steps, finish_reason="length", eos=False, **fields):
        body = CompletionRequest(prompt="Hi", max_tokens=50, **fields)
        decoder = ChoiceDecoder(
            0, body, Prompt(byte_tokenizer.encode("Hi"), "Hi"), byte_tokenizer, echo=body.echo
        )
        batches = [byte_tokenizer.encode(step) for step in steps]
        batches[-1] += [EOS] * eos
        for number, token_ids in enumerate(batches):
            is_last = number == len(batches) - 1
            output = RequestOutput(
                request_id="r",
                new_token_ids=token_ids,
                logprobs=[
                    TokenLogprobs(token_id, -1.0, [(5, -0.5)], rank=2) for token_id in token_ids
                ],
                finish_reason=finish_reason if is_last else None,
                stop_token_id=EOS if eos and is_last else None,
            )
            decoder.append(output)
            if decoder.finish_reason is not None:
                break
        return decoder, decoder.take()

    return run


def test_a_stop_string_inside_a_step_drops_the_tokens_behind_it(decode, byte_tokenizer):
    decoder, delta = decode("one. two. three", stop=["two"], logprobs=0)
    num_kept = len(byte_tokenizer.encode("one. two"))
    assert (delta.text, delta.finish_reason) == ("one. ", "stop")
    assert decoder.num_tokens == len(delta.token_ids) == len(delta.logprobs) == num_kept


def test_a_stop_string_across_steps_is_found(decode):
    _, delta = decode("one. t", "w", "o. three", stop="two")
    assert (delta.text, delta.finish_reason) == ("one. ", "stop")


@pytest.mark.parametrize("split", range(1, 14))
def test_it_does_not_matter_how_tokens_are_spread_over_steps(decode, split):
    text = "one. two. three"
    _, delta = decode(text[:split], text[split:], stop=["o. ", "thr"])
    assert delta.text == "one. tw"


def test_a_stop_string_beats_the_length_that_comes_behind_it(decode):
    _, delta = decode("abcd", stop="c", finish_reason="length")
    assert delta.finish_reason == "stop"


def test_the_first_tokens_cannot_stop_below_min_tokens(decode):
    decoder, delta = decode("a.b.c.", stop=".", min_tokens=3)
    assert (delta.text, decoder.num_tokens) == ("a.b", 4)


def test_eos_has_an_entry_and_no_text(decode):
    decoder, delta = decode("ab", finish_reason="stop", eos=True, logprobs=0)
    assert delta.text == "ab"
    assert delta.logprobs[-1].token_id == EOS
    assert delta.logprobs[-1].text_offset == 2
    assert decoder.num_tokens == len(delta.logprobs)


def test_a_cut_character_is_flushed_at_the_end(byte_tokenizer):
    body = CompletionRequest(prompt="Hi")
    decoder = ChoiceDecoder(0, body, Prompt([1], "Hi"), byte_tokenizer, echo=body.echo)
    token_ids = byte_tokenizer.encode("🙈")[:-1]
    decoder.append(RequestOutput(request_id="r", new_token_ids=token_ids, finish_reason="length"))
    assert decoder.take().text == "\ufffd"


def test_the_echoed_prompt_cannot_stop(decode):
    _, delta = decode("a", "Hi b", echo=True, stop="Hi")
    assert delta.text == "Hia"


def test_offsets_count_from_the_echoed_prompt(decode):
    _, delta = decode("x", "y", echo=True, logprobs=0)
    assert [entry.text_offset for entry in delta.logprobs] == [2, 3]


def test_offsets_never_lie_behind_a_text_that_was_cut(decode):
    _, delta = decode("a", "b", "c", stop="abc", logprobs=0)
    assert (delta.text, [entry.text_offset for entry in delta.logprobs]) == ("", [0, 0, 0])


def test_an_echo_of_the_prompt_alone_ends_without_a_token(byte_tokenizer):
    body = CompletionRequest(prompt="Hi", max_tokens=0, echo=True)
    decoder = ChoiceDecoder(0, body, Prompt([1], "Hi"), byte_tokenizer, echo=body.echo)
    output = RequestOutput(request_id="r", finish_reason="length")
    assert decoder.append(output) == 0
    assert (decoder.take().text, decoder.finish_reason) == ("Hi", "length")
