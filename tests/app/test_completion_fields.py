"""What each field of /v1/completions does, beside those of test_completions.py."""

from __future__ import annotations

import asyncio

import pytest
from completions_api import complete, refuse, stream
from fake_engine import MAX_MODEL_LEN, says

from engine.messages import RequestOutput, TokenLogprobs

EOS = 0
TEXT = " Hello 😀 world"


def scores(*logprobs):
    """A script: choice i says one token, its own, whose logprob is logprobs[i]."""

    def script(request):
        choice_index = request.sampling_params.choice_index
        token_id = 65 + choice_index
        asked = request.sampling_params.num_logprobs is not None
        logprob = TokenLogprobs(token_id, logprobs[choice_index], [], rank=1)
        return [
            RequestOutput(
                request_id=request.request_id,
                new_token_ids=[token_id],
                logprobs=[logprob] if asked else None,
                finish_reason="length",
            )
        ]

    return script


@pytest.fixture
def speak(engine):
    """Makes the engine say token ids, the last of which may be one that stops."""

    def speak(token_ids, *, stop_token_id=None, per_step=1):
        steps = [token_ids[i : i + per_step] for i in range(0, len(token_ids), per_step)]
        finish_reason = "length" if stop_token_id is None else "stop"

        def script(request):
            return [
                RequestOutput(
                    request_id=request.request_id,
                    new_token_ids=step,
                    finish_reason=finish_reason if step is steps[-1] else None,
                    stop_token_id=stop_token_id if step is steps[-1] else None,
                )
                for step in steps
            ]

        engine.script = script

    return speak


async def test_best_of_returns_the_best_by_mean_logprob_and_counts_all(
    client, engine, byte_tokenizer
):
    engine.script = scores(-3.0, -1.0, -2.0)
    answer = await complete(client, n=2, best_of=3, temperature=1)
    shown = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    best = [byte_tokenizer.decode([66]), byte_tokenizer.decode([67])]
    assert shown == [(0, best[0]), (1, best[1])]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 3
    assert [request.sampling_params.num_logprobs for request in engine.requests] == [0, 0, 0]


async def test_best_of_keeps_the_first_of_equal_candidates(client, engine):
    engine.script = scores(-2.0, -1.0, -1.0)
    answer = await complete(client, best_of=3, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [[66]]


async def test_best_of_ranks_each_prompt_by_itself(client, engine):
    engine.script = scores(-2.0, -1.0)
    answer = await complete(client, prompt=["a", "b"], best_of=2, return_token_ids=True)
    shown = [(choice["index"], choice["token_ids"]) for choice in answer["choices"]]
    assert shown == [(0, [66]), (1, [66])]
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [engine.requests[0].prompt_token_ids, engine.requests[2].prompt_token_ids]


async def test_best_of_prefers_a_high_mean_to_a_high_sum(client, engine):
    def script(request):
        num_tokens = 1 if request.sampling_params.choice_index == 0 else 3
        logprobs = [TokenLogprobs(65, -1.5 if num_tokens == 1 else -1.0, [], rank=1)] * num_tokens
        return [
            RequestOutput(
                request_id=request.request_id,
                new_token_ids=[65] * num_tokens,
                logprobs=logprobs,
                finish_reason="length",
            )
        ]

    engine.script = script
    answer = await complete(client, best_of=2, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [65, 65, 65]


async def test_best_of_as_many_as_n_ranks_nothing(client, engine):
    engine.script = scores(-3.0, -1.0)
    answer = await complete(client, n=2, best_of=2, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [[65], [66]]
    assert engine.requests[0].sampling_params.num_logprobs is None


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_prompt_logprobs_come_once_for_each_choice_by_token_id(
    client, byte_tokenizer, streamed
):
    fields = {"prompt": "Hi there", "prompt_logprobs": 1, "n": 2}
    answers = await stream(client, **fields) if streamed else [await complete(client, **fields)]
    choices = [choice for answer in answers for choice in answer["choices"]]
    found = [choice["prompt_logprobs"] for choice in choices if "prompt_logprobs" in choice]
    assert len(found) == 2
    assert found[0] == found[1]
    token_ids = byte_tokenizer.encode("Hi there")
    first, *others = found[0]
    assert first is None
    assert len(others) == len(token_ids) - 1
    for position, (token_id, entry) in enumerate(zip(token_ids[1:], others, strict=True), 1):
        assert entry == {
            str(token_id): {
                "logprob": -float(position),
                "rank": 3,
                "decoded_token": byte_tokenizer.token_text(token_id),
            },
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": byte_tokenizer.token_text(1)},
        }


async def test_prompt_logprobs_come_in_the_first_chunk_of_a_choice(client):
    chunks = await stream(client, prompt_logprobs=0)
    assert ["prompt_logprobs" in chunk["choices"][0] for chunk in chunks] == [
        True,
        *[False] * (len(chunks) - 1),
    ]


async def test_prompt_logprobs_alone_leave_the_generated_tokens_without(client):
    [choice] = (await complete(client, prompt_logprobs=2))["choices"]
    assert choice["logprobs"] is None


async def test_each_logprobs_field_has_a_number_of_its_own(client, engine):
    answer = await complete(client, prompt="Hi there", echo=True, logprobs=0, prompt_logprobs=2)
    [choice] = answer["choices"]
    assert engine.requests[0].sampling_params.num_prompt_logprobs == 2
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:]} == {1}
    assert {len(entry) for entry in choice["prompt_logprobs"][1:]} == {3}


async def test_tokens_can_be_shown_as_ids(client):
    fields = {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    [choice] = (await complete(client, prompt_logprobs=0, **fields))["choices"]
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    for name, top in zip(names, choice["logprobs"]["top_logprobs"], strict=True):
        assert set(top) == {name, "token_id:1"}
    shown = [*choice["prompt_logprobs"][1].values()][0]["decoded_token"]
    assert shown == f"token_id:{choice['prompt_token_ids'][1]}"


@pytest.mark.parametrize("per_step", [1, 3, 9])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_the_stop_string_can_stay_in_the_output(
    client, speak, byte_tokenizer, per_step, streamed
):
    speak(byte_tokenizer.encode("one. two. three"), per_step=per_step)
    fields = {"stop": ["wo. "], "include_stop_str_in_output": True}
    answers = await stream(client, **fields) if streamed else [await complete(client, **fields)]
    choices = [answer["choices"][0] for answer in answers]
    assert "".join(choice["text"] for choice in choices) == "one. two. "
    assert choices[-1]["finish_reason"] == "stop"


async def test_the_stop_token_can_stay_in_the_output(client, speak, byte_tokenizer):
    token_ids = byte_tokenizer.encode("ab")
    speak(token_ids, stop_token_id=token_ids[-1])
    assert (await complete(client))["choices"][0]["text"] == "a"
    kept = await complete(client, include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == "ab"


async def test_an_eos_that_stays_is_only_seen_where_special_tokens_are(
    client, speak, byte_tokenizer
):
    speak([*byte_tokenizer.encode("a"), EOS], stop_token_id=EOS)
    for skip, text in ((True, "a"), (False, "a<|end|>")):
        fields = {"include_stop_str_in_output": True, "skip_special_tokens": skip}
        assert (await complete(client, **fields))["choices"][0]["text"] == text


async def test_special_tokens_in_the_output_are_text_on_request(client, speak, byte_tokenizer):
    speak([*byte_tokenizer.encode("a"), EOS, *byte_tokenizer.encode("b")])
    for skip, text in ((True, "ab"), (False, "a<|end|>b")):
        answer = await complete(client, skip_special_tokens=skip, logprobs=None)
        assert answer["choices"][0]["text"] == text


@pytest.mark.parametrize("skip", [True, False])
async def test_a_stop_string_that_is_a_special_token_stops_at_the_token(client, engine, skip):
    """It is not in the text where special tokens are skipped, so that the id must match."""
    await complete(client, stop=["<|end|>", "x"], stop_token_ids=[7, 0], skip_special_tokens=skip)
    assert engine.requests[0].sampling_params.stop_token_ids == [7, 0]
    await complete(client, stop="<|end|>", stop_token_ids=[7], skip_special_tokens=skip)
    assert engine.requests[1].sampling_params.stop_token_ids == [7, 0]


async def test_a_special_token_spelled_out_by_the_model_is_a_stop_string(
    client, speak, byte_tokenizer
):
    spelled = [token for piece in ("a<", "|end", "|>b") for token in byte_tokenizer.encode(piece)]
    assert EOS not in spelled
    speak(spelled)
    [choice] = (await complete(client, stop="<|end|>"))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a", "stop")


async def test_a_prompt_can_be_truncated_to_its_last_tokens(client, engine):
    prompt = list(range(1, 11))
    answer = await complete(client, prompt=prompt, truncate_prompt_tokens=4, echo=True)
    assert engine.requests[0].prompt_token_ids == [7, 8, 9, 10]
    assert answer["usage"]["prompt_tokens"] == 4


async def test_the_echo_shows_the_truncated_prompt(client, byte_tokenizer):
    last = byte_tokenizer.decode(byte_tokenizer.encode("Hi there 😀")[-3:])
    fields = {"prompt": "Hi there 😀", "truncate_prompt_tokens": 3, "logprobs": 0}
    [choice] = (await complete(client, echo=True, max_tokens=0, **fields))["choices"]
    assert choice["text"] == last
    assert len(choice["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize(
    ("max_tokens", "num_kept"),
    [(16, MAX_MODEL_LEN - 16), (MAX_MODEL_LEN, 1), (10**12, 1)],
)
async def test_a_prompt_can_be_truncated_to_leave_room(client, engine, max_tokens, num_kept):
    fields = {"truncate_prompt_tokens": -1, "max_tokens": max_tokens}
    await complete(client, prompt=[1] * 500, **fields)
    assert len(engine.requests[0].prompt_token_ids) == num_kept


async def test_a_prompt_that_is_short_enough_is_not_truncated(client, engine):
    await complete(client, prompt=[1, 2], truncate_prompt_tokens=9)
    assert engine.requests[0].prompt_token_ids == [1, 2]


async def test_bad_words_are_forbidden_as_tokens_with_and_without_a_space(
    client, engine, byte_tokenizer
):
    await complete(client, bad_words=["Hello", " world"])
    expected = [byte_tokenizer.encode(text) for text in ("Hello", " Hello", "world", " world")]
    found = engine.requests[0].sampling_params.bad_words
    assert all(any(token_ids[-len(bad) :] == bad for bad in found) for token_ids in expected)
    assert all(bad in expected for bad in found)


async def test_the_fields_of_the_queue_and_the_cache_reach_the_engine(client, engine):
    fields = {"priority": -3, "cache_salt": "mine", "allowed_token_ids": [5, 6], "user": "u"}
    await complete(client, **fields)
    [request] = engine.requests
    assert (request.priority, request.cache_salt) == (-3, "mine")
    assert request.sampling_params.allowed_token_ids == [5, 6]


async def test_the_same_request_id_can_be_used_at_the_same_time(client, engine):
    """vllm#15041, vllm#10583: two requests of one id broke the engine."""
    answers = await asyncio.gather(*(complete(client, request_id="mine") for _ in range(2)))
    assert [answer["id"] for answer in answers] == ["cmpl-mine", "cmpl-mine"]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert len({request.request_id for request in engine.requests}) == 2


@pytest.mark.parametrize(
    "content",
    [" Hello", [{"type": "text", "text": " Hel"}, {"type": "text", "text": "lo"}]],
    ids=["text", "parts"],
)
async def test_a_prediction_reaches_the_engine_as_tokens(client, engine, byte_tokenizer, content):
    await complete(client, prediction={"type": "content", "content": content})
    assert engine.requests[0].prediction_token_ids == byte_tokenizer.encode(" Hello")


async def test_usage_tells_predicted_tokens_that_were_accepted_from_those_that_were_not(
    client, engine
):
    def script(request):
        drafts = [("prediction", 3, 2), ("suffix", 4, 3), ("prediction", 2, 2)]
        return [
            RequestOutput(
                request_id=request.request_id,
                new_token_ids=[65] * (num_accepted + 1),
                draft_kind=kind,
                num_draft_tokens=num_drafted,
                num_accepted_tokens=num_accepted,
                finish_reason="length" if kind == "prediction" and num_drafted == 2 else None,
            )
            for kind, num_drafted, num_accepted in drafts
        ]

    engine.script = script
    usage = (await complete(client, prediction={"content": "x"}))["usage"]
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 1,
    }
    assert usage["completion_tokens"] == 10


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_timeout_before_the_first_token_is_a_408_that_is_not_sent_again(
    client, engine, sample, streamed
):
    engine.script = lambda _: []
    body = {"prompt": "Hi", "timeout": 0.01, "n": 2, "stream": streamed}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 408
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("request_timeout", "timeout")
    assert response.headers["x-should-retry"] == "false"
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert sample("tandem_requests_total", finish_reason="abort") == 2


async def test_a_timeout_in_a_stream_is_an_event_before_the_end(client, engine, sample):
    engine.script = lambda request: [
        RequestOutput(request_id=request.request_id, new_token_ids=[65])
    ]
    first, last = await stream(client, timeout=0.2)
    assert first["choices"][0]["finish_reason"] is None
    assert last["error"]["code"] == "request_timeout"
    assert sample("tandem_requests_total", finish_reason="abort") == 1


async def test_a_request_that_is_in_time_does_not_notice_its_timeout(client, engine):
    answer = await complete(client, timeout=3600)
    assert answer["choices"] == (await complete(client))["choices"]
    assert engine.aborted == []


async def test_too_many_choices_over_all_prompts_are_refused(client, engine):
    error = await refuse(client, prompt=["a"] * 9, n=128)
    assert (error["param"], "1024" in error["message"]) == ("n", True)
    assert engine.requests == []


async def test_a_text_that_cannot_fit_is_refused_without_being_read(client, byte_tokenizer):
    num_chars = MAX_MODEL_LEN * byte_tokenizer.max_chars_per_token + 1
    error = await refuse(client, prompt="a " * num_chars)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert f"at least {2 * MAX_MODEL_LEN} tokens" in error["message"]


async def test_a_text_that_cannot_fit_is_read_where_it_is_truncated(client, engine):
    await complete(client, prompt="a " * 5000, truncate_prompt_tokens=5)
    assert len(engine.requests[0].prompt_token_ids) == 5


async def test_a_suffix_needs_a_model_that_fills_in_the_middle(client):
    error = await refuse(client, suffix="end")
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    await complete(client, suffix="")


async def test_eos_behind_a_cut_character_begins_behind_its_replacement(
    client, engine, byte_tokenizer
):
    cut = byte_tokenizer.encode("🙈")[:-1]
    logprobs = [TokenLogprobs(token_id, -1.0, [], rank=1) for token_id in [*cut, EOS]]
    engine.script = lambda request: [
        RequestOutput(
            request_id=request.request_id,
            new_token_ids=[*cut, EOS],
            logprobs=logprobs,
            finish_reason="stop",
            stop_token_id=EOS,
        )
    ]
    [choice] = (await complete(client, logprobs=0))["choices"]
    assert choice["text"] == "\ufffd"
    assert choice["logprobs"]["text_offset"] == [*[0] * len(cut), 1]


async def test_a_stop_string_keeps_the_tokens_that_complete_it_in_every_array(
    client, engine, byte_tokenizer
):
    """vllm#31135, vllm PR#47616: arrays with tokens behind the stop, or shorter than the usage."""
    engine.script = says(byte_tokenizer, "one. two. three", tokens_per_step=9)
    fields = {"stop": "two", "logprobs": 1, "return_token_ids": True}
    answer = await complete(client, **fields)
    [choice] = answer["choices"]
    kept = byte_tokenizer.encode("one. two")
    assert choice["token_ids"] == kept
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"] == len(kept)
