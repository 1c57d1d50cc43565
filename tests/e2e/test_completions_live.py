"""Each field of /v1/completions that test_live_server.py does not use, once, on the real model."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from tests.e2e.conftest import Server

PROMPT = "Once upon a time, in a town at the edge of the sea,"
SEEDED = {"temperature": 1, "seed": 11, "max_tokens": 12}


@pytest.fixture(scope="module")
def tokenizer(model_dir) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def only_choice(server: Server, prompt: object = PROMPT, **fields: object) -> dict:
    [choice] = server.complete(prompt, **fields)["choices"]
    return choice


def refusal(server: Server, status_code: int = 400, **fields: object) -> dict:
    response = server.post(PROMPT, **fields)
    assert response.status_code == status_code, response.text
    return response.json()["error"]


def mean_logprob(choice: dict) -> float:
    values = choice["logprobs"]["token_logprobs"]
    return sum(values) / len(values)


def test_best_of_is_the_best_of_what_n_would_have_given(server):
    all_four = server.complete(PROMPT, n=4, logprobs=0, **SEEDED)
    ranked = sorted(all_four["choices"], key=mean_logprob, reverse=True)
    best = server.complete(PROMPT, n=2, best_of=4, **SEEDED)
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert best["usage"] == all_four["usage"] | {
        "prompt_tokens_details": best["usage"]["prompt_tokens_details"]
    }


def test_prompt_logprobs_are_those_of_an_echo_with_ranks(server, tokenizer):
    choice = only_choice(server, echo=True, logprobs=1, prompt_logprobs=20, max_tokens=1)
    token_ids = tokenizer.encode(PROMPT).ids
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    echoed = choice["logprobs"]["token_logprobs"][1 : len(token_ids)]
    for token_id, entry, logprob in zip(token_ids[1:], entries, echoed, strict=True):
        own = entry[str(token_id)]
        assert own["logprob"] == logprob
        assert own["decoded_token"] == tokenizer.decode([token_id])
        assert (own["rank"] <= 20) == (len(entry) == 20)
        by_rank = sorted(entry.values(), key=lambda shown: shown["rank"])
        values = [shown["logprob"] for shown in by_rank]
        assert values == sorted(values, reverse=True)


def test_a_truncated_prompt_is_the_prompt_of_its_last_tokens(server, tokenizer):
    last = tokenizer.encode(PROMPT).ids[-5:]
    assert only_choice(server, truncate_prompt_tokens=5) == only_choice(server, last)
    echoed = only_choice(server, truncate_prompt_tokens=5, echo=True, max_tokens=0)
    assert echoed["text"] == tokenizer.decode(last)


def test_a_bad_word_does_not_occur(server):
    word = only_choice(server, max_tokens=24)["text"].split()[0]
    assert word not in only_choice(server, max_tokens=24, bad_words=[word])["text"].split()


def test_only_allowed_tokens_occur(server, tokenizer):
    allowed = tokenizer.encode(" red green blue").ids
    choice = only_choice(server, allowed_token_ids=allowed, return_token_ids=True, **SEEDED)
    assert set(choice["token_ids"]) <= set(allowed)


def test_a_stop_string_can_be_kept(server):
    text = only_choice(server, max_tokens=24)["text"]
    stop = text[10:14]
    end = text.index(stop)
    assert only_choice(server, max_tokens=24, stop=stop)["text"] == text[:end]
    kept = only_choice(server, max_tokens=24, stop=stop, include_stop_str_in_output=True)
    assert kept["text"] == text[: end + len(stop)]


@pytest.mark.parametrize("skip", [True, False])
def test_a_special_token_stops_by_its_name_and_shows_on_request(server, skip):
    fields = {"logit_bias": {"1": 100}, "ignore_eos": True, "skip_special_tokens": skip}
    shown = only_choice(server, max_tokens=2, **fields)
    assert shown["text"] == ("" if skip else "<|im_start|>" * 2)
    stopped = only_choice(server, max_tokens=2, stop="<|im_start|>", **fields)
    assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")


def test_tokens_are_shown_as_ids(server):
    fields = {"logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}
    choice = only_choice(server, **fields)
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names


def test_each_prompt_of_a_list_gives_what_it_gives_alone(server):
    prompts = ["The sea is", "Two and two"]
    together = server.complete(prompts, n=2, **SEEDED)["choices"]
    alone = [c for prompt in prompts for c in server.complete(prompt, n=3, **SEEDED)["choices"][:2]]
    assert [c["text"] for c in together] == [c["text"] for c in alone]


def test_a_right_prediction_is_accepted_and_changes_nothing(server):
    fields = {"max_tokens": 40, "speculative": None}
    plain = server.complete(PROMPT, **fields)
    prediction = {"type": "content", "content": plain["choices"][0]["text"]}
    predicted = server.complete(PROMPT, prediction=prediction, **fields)
    assert predicted["choices"] == plain["choices"]
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    assert predicted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_a_wrong_prediction_is_rejected_and_changes_nothing(server):
    prediction = {"type": "content", "content": " Zebra" * 40}
    predicted = server.complete(PROMPT, prediction=prediction)
    assert predicted["choices"] == server.complete(PROMPT)["choices"]
    assert predicted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_a_deadline_ends_the_request_and_frees_its_slot(server):
    before = server.metrics()['tandem_requests_total{finish_reason="abort"}']
    error = refusal(server, 408, timeout=0.2, max_tokens=4000, ignore_eos=True)
    assert (error["code"], error["param"]) == ("request_timeout", "timeout")
    after = server.metrics()['tandem_requests_total{finish_reason="abort"}']
    assert after == before + 1
    # It is the only one: its slot is free once this one has been served.
    server.complete(PROMPT, max_tokens=1)
    assert server.metrics()["tandem_num_requests_running"] == 0


def test_an_answer_has_the_id_and_follows_the_schema_that_were_asked_for(server):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    answer = server.complete(
        "A person as JSON:",
        max_tokens=60,
        request_id="mine",
        priority=-1,
        cache_salt="mine",
        user="somebody",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    assert answer["id"] == "cmpl-mine"
    [choice] = answer["choices"]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"])["age"], int)
    else:
        assert choice["text"].startswith("{")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "the end"}, "suffix", "unsupported_parameter"),
        ({"prompt": "a" * 2_000_000}, "prompt", "context_length_exceeded"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "invalid_grammar"),
    ],
    ids=["suffix", "length", "grammar"],
)
def test_what_cannot_be_done_is_refused_by_name(server, fields, param, code):
    response = server.post(**{"prompt": PROMPT, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
