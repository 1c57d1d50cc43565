"""Reports of missing logprobs and wrong usage, as checks of a real server with the real model."""

from __future__ import annotations

import pytest

from tests.e2e.streamed_answer import StreamedAnswer

pytestmark = pytest.mark.usefixtures("unharmed")

PROMPT = "Once upon a time, in a town at the edge of the sea,"
REPEATED = "one two three four five six seven eight nine ten. " * 4 + "one"
END_OF_TURN = "<|im_start|>user\nSay ok<|im_end|>\n<|im_start|>assistant\nok<|im_end|>"
SPECULATION = ({"speculative": False}, {"speculative": {"num_speculative_tokens": 7}}, {})


def agreed(server, prompt: object, **body: object) -> dict:
    """The one choice, which is the same with every kind of speculation, to the last bit."""
    answers = [server.complete(prompt, **body, **extra)["choices"] for extra in SPECULATION]
    assert answers == answers[:1] * len(answers)
    (choice,) = answers[0]
    return choice


def test_speculation_changes_no_logprob(server):
    """llama.cpp#27972, sglang#10660, vllm#34497 (55)."""
    logprobs = agreed(server, REPEATED, max_tokens=16, logprobs=5)["logprobs"]
    assert {len(values) for values in logprobs.values()} == {16}
    assert all(value is not None and value <= 0 for value in logprobs["token_logprobs"])
    assert all(len(top) in (5, 6) for top in logprobs["top_logprobs"])


def test_speculation_changes_no_logprob_of_the_prompt(server):
    """vllm#53488 (56)."""
    choice = agreed(server, REPEATED, max_tokens=1, logprobs=1, echo=True, return_token_ids=True)
    num_tokens = len(choice["prompt_token_ids"]) + 1
    assert {len(values) for values in choice["logprobs"].values()} == {num_tokens}


def test_a_prompt_of_several_chunks_has_all_its_logprobs(server):
    """vllm-metal#680 (58)."""
    ids = [4000 + i for i in range(300)]
    choice = server.complete(ids, max_tokens=1, logprobs=1, echo=True)["choices"][0]
    values = choice["logprobs"]["token_logprobs"]
    assert len(values) == 301
    assert values[0] is None
    assert None not in values[1:]
    prompt_logprobs = server.complete(ids, max_tokens=1, prompt_logprobs=1)["choices"][0][
        "prompt_logprobs"
    ]
    assert len(prompt_logprobs) == 300
    assert prompt_logprobs[0] is None
    chosen = [
        entry[str(token_id)]["logprob"]
        for token_id, entry in zip(ids[1:], prompt_logprobs[1:], strict=True)
    ]
    assert chosen == values[1:-1]


def test_an_evaluation_finds_what_it_asks_for(server):
    """llama.cpp#27174, lm-eval#4158 (59): the shape of lm-eval's requests."""
    prompts = [[3, 4, 5, 6], list(range(10, 40))]
    body = {"echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234}
    answer = server.complete(prompts, **body)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        for token, logprob, top in zip(
            logprobs["tokens"][1:],
            logprobs["token_logprobs"][1:],
            logprobs["top_logprobs"][1:],
            strict=True,
        ):
            assert top[token] == logprob <= max(top.values())
        assert logprobs["token_logprobs"][-1] == max(logprobs["top_logprobs"][-1].values())


def test_an_output_of_the_end_token_alone_has_its_logprob(server):
    """Report 61: no text, and an entry."""
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "return_token_ids": True}
    end_of_turn = {"logit_bias": {"2": 100}}
    choice = agreed(server, END_OF_TURN, **body, **end_of_turn)
    assert choice["token_ids"] == [2]
    assert (choice["text"], choice["finish_reason"]) == (END_OF_TURN, "stop")
    num_tokens = len(choice["prompt_token_ids"]) + 1
    assert {len(values) for values in choice["logprobs"].values()} == {num_tokens}


def test_a_prompt_counts_once_and_all_choices_count(server):
    """vllm#8625, vllm PR#9475 (62)."""
    answer = server.complete([5, 6, 7], n=3, temperature=1, max_tokens=6, return_token_ids=True)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] == sum(len(c["token_ids"]) for c in answer["choices"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_once_without_choices_at_the_end(server, n):
    """TGI#2336, sglang#954, ollama#4357 (64), litellm#28735 (65)."""
    body = {"n": n, "temperature": 1, "seed": 1, "max_tokens": 8}
    stream = StreamedAnswer.read(server, PROMPT, **body, stream_options={"include_usage": True})
    *chunks, last = stream.chunks
    assert last["choices"] == []
    assert (
        last["usage"]["completion_tokens"]
        == server.complete(PROMPT, **body)["usage"]["completion_tokens"]
    )
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    ids = {chunk["id"] for chunk in stream.chunks}
    assert len(ids) == 1
    assert "" not in ids
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason is not None] == ["length"] * n


def test_a_stream_that_was_left_told_its_usage_so_far(server):
    """openai-openapi#539 (67)."""
    before = server.metrics()
    left = StreamedAnswer.leave(server, 3, PROMPT, max_tokens=200, ignore_eos=True)
    counts = [chunk["usage"]["completion_tokens"] for chunk in left.chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    after = server.wait_until_idle()
    name = "tandem_generation_tokens_total"
    assert counts[-1] <= after[name] - before[name] < 200


def test_token_ids_and_text_of_a_stream_add_up_while_a_stop_is_awaited(server):
    """vllm#31135 (68): the ids come with the step that made them, the text when it is certain."""
    body = {"max_tokens": 16, "stop": ["abc", "four five x"], "return_token_ids": True}
    (choice,) = server.complete(REPEATED, **body)["choices"]
    assert StreamedAnswer.read(server, REPEATED, **body).choices == [choice]
    assert len(choice["token_ids"]) == 16
