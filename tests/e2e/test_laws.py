"""Laws that relate the answers to different requests, whatever the model says.

The examples are the same in every run; TANDEM_LAW_EXAMPLES is their number for each law. They are
not shrunk when they fail: that would take hundreds of requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.e2e.conftest import Server
from tests.e2e.engine_crash import kill_engine
from tests.e2e.streamed_answer import StreamedAnswer

Body = dict[str, Any]
law = settings(
    max_examples=int(os.environ.get("TANDEM_LAW_EXAMPLES", "8")),
    phases=[Phase.generate],
    derandomize=True,
    database=None,
)
VOCAB_SIZE = 49152
TEXTS = (
    "Once upon a time, in a town at the edge of the sea,",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    '{"id": 1, "ok": true}\n{"id": 2, "ok": true}\n{"id":',
    "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,",
    "你好，世界。你好，世界。你好，",
    "😀 🎉 👩‍👩‍👧 😀 🎉",
    "naïve café — “déjà vu”\r\n\t",
    "<|im_start|>user\nHello<|im_end|>\n",
)

# The model's tokenizer has no bytes for planes in which nothing is assigned, and for these.
NOT_IN_VOCABULARY = "\x04\x06\x13\x14\x16\x1d"
texts = st.sampled_from(TEXTS) | st.text(
    st.characters(exclude_categories=["Cs", "Cn", "Co"], exclude_characters=NOT_IN_VOCABULARY),
    min_size=1,
    max_size=20,
)
token_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12)
prompts = st.one_of(texts, token_ids)


@st.composite
def sampling(draw: st.DrawFn) -> Body:
    """How tokens are chosen: always reproducible, greedy in a third of the cases."""
    body: Body = {
        "temperature": draw(st.sampled_from([0, 0.7, 1.3])),
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
    }
    optional = {
        "top_p": st.floats(0.3, 1),
        "top_k": st.integers(1, 50),
        "min_p": st.floats(0, 0.3),
        "frequency_penalty": st.floats(-1, 2),
        "presence_penalty": st.floats(-1, 2),
        "repetition_penalty": st.floats(0.8, 1.5),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB_SIZE - 1).map(str), st.floats(-100, 5), max_size=3
        ),
        "ignore_eos": st.booleans(),
        "min_tokens": st.integers(0, 4),
    }
    return body | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def bodies(draw: st.DrawFn, max_n: int = 2) -> Body:
    """A whole request, with everything that a law does not set itself."""
    shape = {
        "prompt": prompts,
        "max_tokens": st.integers(4, 12),
        "n": st.integers(1, max_n),
        "return_token_ids": st.just(True),
    }
    optional = {
        "stop": st.lists(st.sampled_from(["\n", " the", ",", "a", "e ", "》"]), max_size=3),
        "logprobs": st.integers(0, 3),
        "echo": st.booleans(),
    }
    return draw(sampling()) | draw(st.fixed_dictionaries(shape, optional=optional))


def choices(server: Server, body: Body) -> list[Body]:
    return server.complete(**body)["choices"]


def without(body: Body, *names: str) -> Body:
    return {name: value for name, value in body.items() if name not in names}


@pytest.fixture(scope="module")
def encode(model_dir: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


@law
@given(body=bodies())
def test_a_stream_says_what_the_whole_answer_says(server, body):
    """Law 1."""
    assert StreamedAnswer.read(server, **body).choices == choices(server, body)


@law
@given(body=bodies(), num_speculative_tokens=st.integers(1, 15))
def test_speculation_of_any_length_changes_nothing(server, body, num_speculative_tokens):
    """Law 2."""
    plain = choices(server, body | {"speculative": False})
    drafted = {"speculative": {"num_speculative_tokens": num_speculative_tokens}}
    assert choices(server, body | drafted) == plain


@law
@given(batch=st.lists(bodies(), min_size=3, max_size=3))
def test_company_changes_nothing(server, batch):
    """Law 3."""
    alone = [choices(server, body) for body in batch]
    with ThreadPoolExecutor(len(batch)) as threads:
        together = list(threads.map(lambda body: choices(server, body), batch))
    assert together == alone


@law
@given(text=texts, body=bodies())
def test_a_text_and_its_token_ids_are_the_same_prompt(server, encode, text, body):
    """Law 4: no token is added to one of them."""
    as_text = choices(server, body | {"prompt": text})
    assert choices(server, body | {"prompt": encode(text)}) == as_text


@law
@given(
    each=st.lists(texts, min_size=2, max_size=3) | st.lists(token_ids, min_size=2, max_size=3),
    body=bodies(),
)
def test_a_list_of_prompts_is_each_of_them_with_the_same_seed(server, each, body):
    """Law 5: choice i of a prompt is what it is alone, counted on through the prompts."""
    alone = [choice for prompt in each for choice in choices(server, body | {"prompt": prompt})]
    numbered = [choice | {"index": index} for index, choice in enumerate(alone)]
    assert choices(server, body | {"prompt": each}) == numbered


@law
@given(body=bodies(max_n=1))
def test_a_choice_does_not_depend_on_how_many_are_asked_for(server, body):
    """Law 6."""
    assert choices(server, body | {"n": 2}) == choices(server, body | {"n": 4})[:2]


@law
@given(text=texts, body=bodies())
def test_an_echo_is_the_prompt_and_the_output(server, text, body):
    """Law 7."""
    body = without(body, "echo") | {"prompt": text}
    outputs = [text + choice["text"] for choice in choices(server, body)]
    assert [choice["text"] for choice in choices(server, body | {"echo": True})] == outputs


@law
@given(body=bodies(), num_logprobs=st.integers(0, 20))
def test_logprobs_change_nothing_else(server, body, num_logprobs):
    """Law 8."""
    plain = [without(choice, "logprobs") for choice in choices(server, without(body, "logprobs"))]
    told = choices(server, body | {"logprobs": num_logprobs})
    assert [without(choice, "logprobs") for choice in told] == plain
    assert all(choice["logprobs"] is not None for choice in told)


@law
@given(body=bodies())
def test_a_longer_output_begins_with_the_shorter_one(server, body):
    """Law 9: but for a character that the shorter one's end cuts in two.

    A stop string's beginning is text until the string is complete, hence no stop strings.
    """
    body = without(body, "stop")
    longer = choices(server, body | {"max_tokens": body["max_tokens"] + 1})
    for short, long in zip(choices(server, body), longer, strict=True):
        assert long["token_ids"][: len(short["token_ids"])] == short["token_ids"]
        assert long["text"].startswith(short["text"].rstrip("\ufffd"))


@law
@given(body=bodies(), data=st.data())
def test_a_stop_string_cuts_the_output_before_it(server, body, data):
    """Law 10: with a string that occurs, where it first does."""
    body = without(body, "stop", "min_tokens", "echo") | {"n": 1}
    (free,) = choices(server, body)
    text = free["text"] or "x"
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 8))]
    (stopped,) = choices(server, body | {"stop": stop})
    assert stopped["text"] == free["text"].partition(stop)[0]
    assert stopped["finish_reason"] == ("stop" if stop in free["text"] else free["finish_reason"])


@settings(law, max_examples=2)
@given(batch=st.lists(bodies(), min_size=4, max_size=4))
def test_an_engine_that_was_killed_comes_back_the_same(server, batch):
    """Law 11."""
    before = [choices(server, body) for body in batch]
    kill_engine(server)
    assert [choices(server, body) for body in batch] == before


@law
@given(batch=st.lists(bodies(), min_size=2, max_size=3))
def test_the_counters_are_the_sum_of_all_usage(server, batch):
    """Law 12."""
    before = server.metrics()
    with ThreadPoolExecutor(len(batch)) as threads:
        answers = list(threads.map(lambda body: server.complete(**body), batch))
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after}
    usages = [answer["usage"] for answer in answers]
    assert grown["tandem_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages)
    assert grown["tandem_generation_tokens_total"] == sum(u["completion_tokens"] for u in usages)
    reasons = [choice["finish_reason"] for answer in answers for choice in answer["choices"]]
    for reason in ("stop", "length", "abort", "error"):
        series = f'tandem_requests_total{{finish_reason="{reason}"}}'
        assert grown[series] == reasons.count(reason)


@law
@given(body=bodies(), num_chunks=st.integers(1, 4))
def test_an_answer_that_was_left_is_counted_as_far_as_it_was_read(server, body, num_chunks):
    """Law 12: what was read, at least, and at most what was asked for."""
    body |= {"max_tokens": 24, "ignore_eos": True}
    before = server.metrics()
    left = StreamedAnswer.leave(server, num_chunks, **without(body, "stop"))
    after = server.wait_until_idle()
    counted = after["tandem_generation_tokens_total"] - before["tandem_generation_tokens_total"]
    assert left.chunks[-1]["usage"]["completion_tokens"] <= counted <= 24 * body["n"]
    ended = [
        after[name] - before[name] for name in after if name.startswith("tandem_requests_total")
    ]
    assert sum(ended) == body["n"]
