from __future__ import annotations

import pytest
from completions_api import complete, refuse, stream
from fake_engine import MAX_MODEL_LEN, says

from app.errors import EngineDownError, EngineStartingError
from engine.messages import RequestOutput

TEXT = " Hello 😀 world"


def joined(chunks, index=0):
    """One choice, put together from its chunks."""
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    text = "".join(piece["text"] for piece in pieces)
    logprobs = None
    if pieces[0]["logprobs"] is not None:
        logprobs = {
            key: [item for piece in pieces for item in piece["logprobs"][key]]
            for key in pieces[0]["logprobs"]
        }
    return text, logprobs, pieces[-1]["finish_reason"]


@pytest.mark.parametrize("form", ["text", "texts", "ids", "lists"])
async def test_all_prompt_forms_reach_the_engine_as_the_same_ids(
    client, engine, byte_tokenizer, form
):
    token_ids = byte_tokenizer.encode("Hi")
    prompts = {"text": "Hi", "texts": ["Hi"], "ids": token_ids, "lists": [token_ids]}
    await complete(client, prompt=prompts[form])
    assert [request.prompt_token_ids for request in engine.requests] == [token_ids]


async def test_a_completion_has_openais_shape(client, byte_tokenizer):
    answer = await complete(client)
    num_tokens = len(byte_tokenizer.encode(TEXT)) + 1
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": num_tokens,
        "total_tokens": num_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client, engine):
    answer = await complete(client, prompt=["a", "b"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    asked = [(r.prompt_token_ids, r.sampling_params.choice_index) for r in engine.requests]
    assert [choice_index for _, choice_index in asked] == [0, 1, 0, 1]
    assert asked[0][0] == asked[1][0] != asked[2][0] == asked[3][0]


async def test_choices_share_the_seed_and_a_prompt_is_counted_once(client, engine):
    answer = await complete(client, n=3, seed=-5)
    assert {request.sampling_params.seed for request in engine.requests} == {-5}
    assert answer["usage"]["prompt_tokens"] == 2
    assert "metrics" not in answer


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 2},
        {"logprobs": 0, "echo": True},
        {"logprobs": 1, "stop": "llo 😀"},
        {"stop": ["😀 w"], "echo": True},
        {"max_tokens": 3, "logprobs": 1},
        {"max_tokens": 0, "echo": True, "logprobs": 1},
        {"n": 2, "prompt": ["a", "b"], "logprobs": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("tokens_per_step", [1, 2, 4])
async def test_a_stream_says_what_the_whole_answer_says(
    client, engine, byte_tokenizer, fields, tokens_per_step
):
    engine.script = says(byte_tokenizer, TEXT, tokens_per_step=tokens_per_step)
    answer = await complete(client, **fields)
    chunks = await stream(client, **fields)
    for choice in answer["choices"]:
        expected = (choice["text"], choice["logprobs"], choice["finish_reason"])
        assert joined(chunks, choice["index"]) == expected


async def test_the_answer_does_not_depend_on_how_many_tokens_a_step_gave(
    client, engine, byte_tokenizer
):
    answers = []
    for tokens_per_step in (1, 3, 5):
        engine.script = says(byte_tokenizer, TEXT, tokens_per_step=tokens_per_step)
        answer = await complete(client, stop=["wor"], logprobs=2)
        answers.append((answer["choices"], answer["usage"]))
    assert answers[0] == answers[1] == answers[2]


async def test_a_stream_has_one_id_and_one_finish_reason_per_choice(client):
    chunks = await stream(client, n=2)
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert sorted(filter(None, reasons)) == ["stop", "stop"]


async def test_usage_comes_in_one_chunk_of_its_own_before_the_end(client):
    *chunks, last = await stream(client, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == (await complete(client))["usage"]
    assert last["metrics"]["speculative_decoding"]["num_spec_steps"] == 0


async def test_usage_is_absent_unless_asked_for(client):
    assert not any("usage" in chunk for chunk in await stream(client))


async def test_usage_can_ride_on_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1


async def test_a_stream_is_not_to_be_buffered(client):
    response = await client.post("/v1/completions", json={"prompt": "Hi", "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


async def test_the_chosen_token_has_one_logprob_in_both_places(client):
    answer = await complete(client, logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == value
        assert len(top) in (2, 3)


async def test_an_echo_has_an_entry_per_prompt_token_and_per_generated_token(client):
    answer = await complete(
        client, prompt="Hi<|end|> there 😀", echo=True, logprobs=1, max_tokens=1
    )
    choice, usage = answer["choices"][0], answer["usage"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("Hi<|end|> there 😀")
    assert {len(array) for array in logprobs.values()} == {usage["total_tokens"]}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)


async def test_a_prompt_of_ids_is_echoed_as_the_same_text(client, byte_tokenizer):
    by_text = await complete(client, prompt="A\0B<|end|>", echo=True)
    by_ids = await complete(client, prompt=byte_tokenizer.encode("A\0B<|end|>"), echo=True)
    assert by_text["choices"] == by_ids["choices"]


async def test_impossible_tokens_have_a_number_in_json(client, engine, byte_tokenizer):
    def script(request):
        [output] = says(byte_tokenizer, "a", tokens_per_step=2)(request)
        return [_with_infinite_logprobs(output)]

    engine.script = script
    answer = await complete(client, logprobs=1)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0, -9999.0]


def _with_infinite_logprobs(output: RequestOutput) -> RequestOutput:
    from msgspec.structs import replace

    logprobs = [replace(each, logprob=float("-inf")) for each in output.logprobs]
    return replace(output, logprobs=logprobs)


async def test_token_ids_come_on_request_and_decode_to_the_text(client, byte_tokenizer):
    answer = await complete(client, return_token_ids=True)
    [choice] = answer["choices"]
    assert byte_tokenizer.decode(choice["token_ids"]) == choice["text"]
    assert choice["prompt_token_ids"] == byte_tokenizer.encode("Hi")


async def test_a_stop_string_ends_the_engine_request(client, engine):
    await complete(client, stop=" world")
    assert engine.aborted == [engine.requests[0].request_id]


async def test_a_finished_request_is_not_aborted(client, engine):
    await complete(client)
    assert engine.aborted == []


async def test_all_sampling_fields_reach_the_engine(client, engine):
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "frequency_penalty": 1.5,
        "presence_penalty": -1.5,
        "repetition_penalty": 1.25,
        "min_tokens": 2,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "max_tokens": 9,
        "seed": 42,
    }
    await complete(client, **fields, logit_bias={"7": -100}, logprobs=3, speculative=False)
    [request] = engine.requests
    params = request.sampling_params
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {7: -100.0}
    assert (params.num_logprobs, params.num_prompt_logprobs) == (3, None)
    assert request.num_speculative_tokens == 0


async def test_max_tokens_is_cut_to_what_the_context_holds(client, engine):
    await complete(client, prompt=[1] * (MAX_MODEL_LEN - 1), max_tokens=10**12)
    assert engine.requests[0].sampling_params.max_tokens == 1


async def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(client):
    error = await refuse(client, prompt=[1] * MAX_MODEL_LEN)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count(str(MAX_MODEL_LEN)) == 2


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], [[1], []]], ids=repr)
async def test_an_empty_prompt_is_refused(client, prompt):
    assert (await refuse(client, prompt=prompt))["param"] == "prompt"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("prompt", [-1]),
        ("prompt", [[1], [10**30]]),
        ("logit_bias", {"99999": 1}),
        ("stop_token_ids", [99999]),
        ("logprobs", 6),
        ("stop", ["a", "b", "c", "d"]),
        ("speculative", {"num_speculative_tokens": 5}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_what_the_model_cannot_do_is_refused_by_name(client, engine, param, value, streamed):
    error = await refuse(client, stream=streamed, **{param: value})
    assert error["param"] == param
    assert engine.requests == []


async def test_one_wrong_prompt_refuses_all_before_anything_starts(client, engine):
    await refuse(client, prompt=[[1], [1] * MAX_MODEL_LEN])
    assert engine.requests == []


async def test_another_model_is_not_found(client):
    error = await refuse(client, 404, model="other")
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineStartingError(), "engine_starting"), (EngineDownError("gone"), "engine_error")],
    ids=["starting", "down"],
)
async def test_without_an_engine_the_client_is_told_to_come_again(client, engine, error, code):
    engine.error = error
    response = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert int(response.headers["retry-after"]) > 0


async def test_a_request_that_the_engine_gives_up_fails_with_its_reason(client, engine):
    engine.script = lambda request: [
        RequestOutput(request_id=request.request_id, finish_reason="error", error="no slot")
    ]
    for streamed in (False, True):
        error = await refuse(client, 500, stream=streamed)
        assert (error["code"], error["message"]) == ("engine_error", "no slot")


async def test_an_error_after_the_first_chunk_is_an_event_before_the_end(client, engine):
    engine.script = lambda request: [
        RequestOutput(request_id=request.request_id, new_token_ids=[70]),
        RequestOutput(request_id=request.request_id, finish_reason="error", error="broken"),
    ]
    first, last = await stream(client)
    assert first["choices"][0]["finish_reason"] is None
    assert last["error"]["code"] == "engine_error"
