"""Reports of lost, doubled or broken text, each as a check of a real server with the real model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.e2e.streamed_answer import StreamedAnswer

pytestmark = pytest.mark.usefixtures("unharmed")

PROMPT = "Once upon a time, in a town at the edge of the sea,"
# Drafted in long runs, since the next numbers are known from the prompt.
REPEATED = "one two three four five six seven eight nine ten. " * 4 + "one"
SPECULATION = ({"speculative": False}, {"speculative": {"num_speculative_tokens": 7}}, {})


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def agreed(server, prompt: object, **body: object) -> dict:
    """The one choice that comes whole, as a stream, and with every kind of speculation."""
    answers = [server.complete(prompt, **body, **extra)["choices"] for extra in SPECULATION]
    answers.append(StreamedAnswer.read(server, prompt, **body).choices)
    assert answers == answers[:1] * len(answers)
    (choice,) = answers[0]
    return choice


@pytest.fixture(scope="module")
def free(server) -> str:
    """What the model says when nothing stops it."""
    return agreed(server, REPEATED, max_tokens=24)["text"]


def forced(token_id: int, **body: object) -> dict:
    return {"logit_bias": {str(token_id): 100}, **body}


@pytest.mark.parametrize("text", ["😀 is a face", "你好，世界", "é́ naïve", "👩‍👩‍👧"])
def test_a_character_of_several_tokens_is_whole_in_a_stream(server, tokenizer, text):
    """llama.cpp#4446, llama.cpp#4036, gittensor#1732, mlx-vlm#1778 (34), Swiftlet#7 (35).

    The prompt makes the model repeat such characters.
    """
    prompt = f"{text} {text} {text} {text} {text}"
    choice = agreed(server, prompt, max_tokens=len(tokenizer.encode(text).ids) + 20)
    assert not choice["text"].isascii()
    assert "\ufffd" not in choice["text"].rstrip("\ufffd")


def test_half_a_character_for_ever_is_text_all_the_same(server, tokenizer):
    """llama.cpp#4446 (34), Swiftlet#7 (35): the first token of an emoji, again and again."""
    first, *_ = tokenizer.encode("😀").ids
    choice = agreed(server, "a", **forced(first, max_tokens=24, return_token_ids=True))
    assert choice["token_ids"] == [first] * 24
    assert choice["text"] == tokenizer.decode([first] * 24)


def test_any_tokens_of_the_vocabulary_are_text(server, tokenizer):
    """vllm#17448, vllm#21951 (37): random ids as the only ones allowed, whole and as streams."""
    rng = random.Random(37)
    for _ in range(6):
        allowed = rng.sample(range(tokenizer.get_vocab_size()), 24)
        body = {"allowed_token_ids": allowed, "temperature": 1.5, "seed": 1, "max_tokens": 24}
        choice = agreed(server, "a", **body, ignore_eos=True, return_token_ids=True)
        assert set(choice["token_ids"]) <= set(allowed)
        assert choice["text"] == tokenizer.decode(choice["token_ids"])


def test_a_stop_string_across_tokens_is_found_and_cut(server, free):
    """llama.cpp#11538 (38), ArcticInference#161 (47): cut inside words."""
    stop = free[7:27]
    assert stop.count(" ") >= 3
    choice = agreed(server, REPEATED, max_tokens=24, stop=stop)
    assert choice["text"] == free[:7]
    assert choice["finish_reason"] == "stop"


def test_what_only_began_like_a_stop_string_comes_once(server, free):
    """llama.cpp#10914, llama.cpp#10997, llama.cpp#13785 (40)."""
    stops = [free[i : i + 6] + "#" for i in (0, 5, 9)]
    assert agreed(server, REPEATED, max_tokens=24, stop=stops)["text"] == free


def test_a_stop_string_of_a_thousand_characters_breaks_nothing(server, free):
    """vllm#2577 (41): one that begins like the text, so that all of it is held back."""
    stop = (free + "x" * 1000)[:1000]
    assert agreed(server, REPEATED, max_tokens=24, stop=stop)["text"] == free


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_stop_strings_in_one_step_the_earlier_one_ends_the_text(server, free, swapped):
    """vLLM's detokenizer (43): whatever their order in the request."""
    early, late = free[9:14], free[20:26]
    assert free.index(early) < free.index(late)
    stop = [early, late] if swapped else [late, early]
    assert agreed(server, REPEATED, max_tokens=24, stop=stop)["text"] == free[: free.index(early)]


def test_a_stop_before_the_last_token_is_not_hidden_by_the_length(server):
    """sglang#31599, sglang#31569, sglang#33758 (44)."""
    free = agreed(server, REPEATED, max_tokens=16, logprobs=0)
    tokens = free["logprobs"]["tokens"]
    for max_tokens in range(3, 16, 3):
        stop = tokens[max_tokens - 2]
        before = "".join(tokens[: tokens.index(stop)])
        choice = agreed(server, REPEATED, max_tokens=max_tokens, stop=stop)
        assert (choice["text"], choice["finish_reason"]) == (before, "stop")


def test_a_stop_token_before_the_last_token_is_not_hidden_by_the_length(server):
    """sglang#31599 (44): the same for a token."""
    free = agreed(server, REPEATED, max_tokens=12, return_token_ids=True)["token_ids"]
    stop = free[7]
    choice = agreed(server, REPEATED, max_tokens=9, stop_token_ids=[stop], return_token_ids=True)
    assert choice["token_ids"] == free[: free.index(stop) + 1]
    assert choice["finish_reason"] == "stop"


def test_no_token_behind_a_stop_is_told_or_counted(server, free):
    """vllm PR#47616, vllm#31135 (46)."""
    body = {"max_tokens": 24, "stop": free[9:14], "return_token_ids": True, "logprobs": 1}
    choice = agreed(server, REPEATED, **body)
    for extra in SPECULATION:
        usage = server.complete(REPEATED, **body, **extra)["usage"]
        assert usage["completion_tokens"] == len(choice["token_ids"])
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(choice["token_ids"])}
    assert "".join(logprobs["tokens"][:-1]) in free
    assert len("".join(logprobs["tokens"][:-1])) < free.index(body["stop"]) + len(body["stop"])


def test_a_stop_string_in_the_prompt_does_not_end_an_echo(server):
    """OpenAI's semantics (49)."""
    prompt = "a###b"
    free = agreed(server, prompt, max_tokens=6)
    choice = agreed(server, prompt, max_tokens=6, echo=True, stop="###")
    assert choice["text"] == prompt + free["text"].partition("###")[0]


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_are_where_the_tokens_are(server, echo):
    """vllm#47815 (50)."""
    choice = agreed(server, PROMPT, max_tokens=12, echo=echo, logprobs=1)
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    for token, offset in zip(tokens, offsets, strict=True):
        assert choice["text"][offset : offset + len(token)] == token


def test_offsets_of_other_scripts_are_where_the_tokens_begin(server):
    """vllm#47815 (50): in characters, also where several tokens make one."""
    prompt = "你好，世界 😀。" * 4
    choice = agreed(server, prompt, max_tokens=16, echo=True, logprobs=0)
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset : offset + len(token)] == token


def test_spaces_at_the_start_are_kept(server, tokenizer):
    """mistral.rs#63 (52)."""
    (token_id,) = tokenizer.encode(" the").ids
    assert agreed(server, "Hello", **forced(token_id, max_tokens=3))["text"] == " the the the"


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_a_stop_string_that_is_a_special_token_stops(server, tokenizer, skip_special_tokens):
    """Report 53: whether or not the token would be text."""
    end = tokenizer.token_to_id("<|im_end|>")
    body = {
        "max_tokens": 6,
        "stop": ["<|im_end|>"],
        "ignore_eos": True,
        "skip_special_tokens": skip_special_tokens,
    }
    choice = agreed(server, "Hello", **forced(end, **body))
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
