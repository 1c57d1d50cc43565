from __future__ import annotations

import pytest
from fake_engine import says
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import RequestOutput, StepStats

VLLM = {"model_name": "tiny", "engine": "0"}

NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
]
OUR_NAMES = [
    "engine_up",
    "engine_ready",
    "slots_in_use_ratio",
    "kv_cache_usage_ratio",
    "cached_prompt_tokens_total",
    "spec_decode_drafts_total",
    "spec_decode_draft_tokens_total",
    "spec_decode_accepted_tokens_total",
]
VLLM_NAMES = [
    "kv_cache_usage_perc",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
]


@pytest.mark.parametrize("name", NAMES + OUR_NAMES)
def test_our_series_exist_at_zero_from_the_start(sample, name):
    assert sample(f"tandem_{name}") == 0


@pytest.mark.parametrize("name", NAMES + VLLM_NAMES)
def test_vllms_series_exist_at_zero_from_the_start(sample, name):
    assert sample(f"vllm:{name}", **VLLM) == 0


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error"])
def test_every_finish_reason_exists_at_zero_from_the_start(sample, reason):
    assert sample("tandem_requests_total", finish_reason=reason) == 0
    assert sample("vllm:request_success_total", finished_reason=reason, **VLLM) == 0


@pytest.mark.parametrize("position", "0123")
def test_every_draft_position_exists_at_zero_from_the_start(sample, position):
    ours = "tandem_spec_decode_accepted_tokens_per_position_total"
    assert sample(ours, position=position) == 0
    vllms = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert sample(vllms, position=position, **VLLM) == 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_counters_equal_the_usage_of_all_answers(client, sample, streamed):
    num_prompt_tokens = num_tokens = 0
    for fields in ({}, {"n": 2}, {"stop": "world"}, {"max_tokens": 0, "echo": True}):
        usage = (await client.post("/v1/completions", json={"prompt": "Hi", **fields})).json()[
            "usage"
        ]
        num_prompt_tokens += usage["prompt_tokens"]
        num_tokens += usage["completion_tokens"]
        if streamed:
            await client.post("/v1/completions", json={"prompt": "Hi", "stream": True, **fields})
    factor = 2 if streamed else 1
    assert sample("tandem_prompt_tokens_total") == factor * num_prompt_tokens
    assert sample("tandem_generation_tokens_total") == factor * num_tokens
    assert sample("vllm:generation_tokens_total", **VLLM) == factor * num_tokens


async def test_accepted_tokens_are_those_that_were_emitted(client, engine, sample, byte_tokenizer):
    # Steps of 4 tokens, of which 3 were drafted; "c" is the third of the first step.
    engine.script = says(byte_tokenizer, "zbcyxw", tokens_per_step=4)
    answer = await client.post("/v1/completions", json={"prompt": "Hi", "stop": "y"})
    speculation = answer.json()["metrics"]["speculative_decoding"]
    assert speculation == {
        "mean_acceptance_length": 4.0,
        "draft_acceptance_rate": 1.0,
        "num_spec_steps": 1,
        "num_draft_tokens": 3,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [0, 0, 0, 1, 0],
    }
    answer = await client.post("/v1/completions", json={"prompt": "Hi", "stop": "b"})
    speculation = answer.json()["metrics"]["speculative_decoding"]
    assert speculation["num_accepted_draft_tokens"] == 2
    assert speculation["acceptance_histogram"] == [0, 0, 1, 0, 0]
    assert sample("tandem_spec_decode_drafts_total") == 2
    assert sample("tandem_spec_decode_accepted_tokens_total") == 5
    per_position = "tandem_spec_decode_accepted_tokens_per_position_total"
    assert [sample(per_position, position=p) for p in "0123"] == [2, 2, 1, 0]


async def test_each_choice_is_counted_once_by_how_it_ended(client, engine, sample):
    await client.post("/v1/completions", json={"prompt": "Hi", "n": 2})
    await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
    engine.script = lambda request: [
        RequestOutput(request_id=request.request_id, finish_reason="error", error="x")
    ]
    await client.post("/v1/completions", json={"prompt": "Hi"})
    reasons = ("stop", "length", "error", "abort")
    counts = [sample("tandem_requests_total", finish_reason=reason) for reason in reasons]
    assert counts == [2, 1, 1, 0]
    assert sample("tandem_e2e_request_latency_seconds_count") == 4


async def test_there_is_one_latency_per_token(client, sample):
    answer = await client.post("/v1/completions", json={"prompt": "Hi"})
    num_tokens = answer.json()["usage"]["completion_tokens"]
    assert sample("tandem_time_to_first_token_seconds_count") == 1
    assert sample("tandem_inter_token_latency_seconds_count") == num_tokens - 1
    assert sample("tandem_request_queue_time_seconds_sum") == 0.25


def test_a_step_sets_the_load_and_idleness_clears_it(metrics, sample):
    stats = StepStats(
        phase="decode",
        step_seconds=0.5,
        draft_seconds=0.25,
        num_rows=2,
        num_tokens=2,
        num_running=2,
        num_waiting=3,
        kv_cache_usage_ratio=0.5,
    )
    metrics.record_step(stats)
    assert sample("tandem_slots_in_use_ratio") == 0.25
    assert sample("vllm:num_requests_waiting", **VLLM) == 3
    assert sample("tandem_engine_step_seconds_sum", phase="decode") == 0.5
    metrics.record_idle()
    assert sample("tandem_num_requests_running") == sample("tandem_kv_cache_usage_ratio") == 0


async def test_a_scrape_has_as_many_series_after_any_number_of_paths(client):
    async def num_series():
        text = (await client.get("/metrics")).text
        return sum(len(family.samples) for family in text_string_to_metric_families(text))

    before = await num_series()
    for number in range(20):
        await client.get(f"/random/{number}")
    assert await num_series() == before
