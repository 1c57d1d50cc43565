"""What benchmarks send and how they read it, without installing them."""

from __future__ import annotations

import json

import httpx
import pytest

MODEL = "SmolLM2-135M-Instruct"
BODIES = {
    "vllm bench serve": {
        "model": MODEL,
        "prompt": "Hello",
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 16,
        "logprobs": None,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "guidellm": {
        "model": MODEL,
        "prompt": "Hello",
        "max_tokens": 16,
        "stop": None,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_stream_is_split_at_empty_lines_and_has_its_usage(server, body):
    response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 16


def test_the_metrics_that_benchmarks_read_are_there(server):
    names = {name.partition("{")[0] for name in server.metrics()}
    assert {
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    } <= names
