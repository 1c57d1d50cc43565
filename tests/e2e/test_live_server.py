"""What a client sees of a real server with the real model."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from tests.e2e.conftest import Server

PROMPT = "Once upon a time, in a town at the edge of the sea,"

BODIES = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 3},
    "stop": {"stop": [" the", "\n"]},
    "stop_across_tokens": {"stop": "a small v", "max_tokens": 40},
    "stop_and_min_tokens": {"stop": [" the"], "min_tokens": 12},
    "penalties": {"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"28": -5, "260": 2.5}, "temperature": 0.8, "seed": 4, "min_p": 0.05},
    "logprobs": {"logprobs": 3},
    "echo_logprobs": {"echo": True, "logprobs": 1},
    "several_choices": {"n": 3, "temperature": 1, "seed": 5},
    "json": {"prompt": '{"id": 7, "status": "ok"}\n' * 4, "max_tokens": 30},
}
SPECULATION = {
    "off": False,
    "default": None,
    "1": {"num_speculative_tokens": 1},
    "4": {"num_speculative_tokens": 4},
    "7": {"num_speculative_tokens": 7},
}


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def choices(completion: dict) -> list[dict]:
    return completion["choices"]


def streamed_choices(server: Server, body: dict) -> list[dict]:
    """A stream put together again: text and logprobs of each choice, concatenated."""
    merged: dict[int, dict] = {}
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16, **body, "stream": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    for event in events:
        for choice in json.loads(event)["choices"]:
            merge(merged.setdefault(choice["index"], {}), choice)
    return [merged[index] for index in sorted(merged)]


def merge(into: dict, choice: dict) -> None:
    into["index"] = choice["index"]
    into["text"] = into.get("text", "") + choice["text"]
    into["finish_reason"] = choice["finish_reason"] or into.get("finish_reason")
    into.setdefault("logprobs", None)
    if choice["logprobs"] is not None:
        into["logprobs"] = into["logprobs"] or {name: [] for name in choice["logprobs"]}
        for name, values in choice["logprobs"].items():
            into["logprobs"][name] += values


@pytest.mark.parametrize("speculative", SPECULATION.values(), ids=SPECULATION.keys())
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_speculation_changes_no_byte(server, body, speculative):
    body = {"prompt": PROMPT, **body}
    plain = server.complete(**body, speculative=False)
    drafted = server.complete(**body, speculative=speculative)
    assert choices(drafted) == choices(plain)
    assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_stream_adds_up_to_the_answer_without_one(server, body):
    assert streamed_choices(server, body) == choices(server.complete(**{"prompt": PROMPT, **body}))


UNICODE_PROMPTS = {
    "emoji": "😀 🎉 👩‍👩‍👧 😀 🎉 👩‍👩‍👧 😀 🎉 👩‍👩‍👧 😀 🎉",
    "chinese": "你好，世界。你好，世界。你好，世界。你好，",
    "mixed": "naïve 😀 你好 naïve 😀 你好 naïve 😀",
}


@pytest.mark.parametrize("prompt", UNICODE_PROMPTS.values(), ids=UNICODE_PROMPTS.keys())
def test_openai_stream_answer_and_decoded_tokens_agree_wherever_they_are_cut(
    server, tokenizer, prompt
):
    client, model = server.client(), "SmolLM2-135M-Instruct"
    were_cut = []
    for max_tokens in range(1, 14):
        asked = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        extra = {"return_token_ids": True}
        whole = client.completions.create(**asked, extra_body=extra)
        stream = client.completions.create(**asked, stream=True)
        text = "".join(chunk.choices[0].text for chunk in stream)
        token_ids = whole.choices[0].model_extra["token_ids"]
        assert text == whole.choices[0].text == tokenizer.decode(token_ids)
        were_cut.append(text.endswith("\ufffd"))
    assert any(were_cut)
    assert not all(were_cut)
    client.close()


def test_all_four_prompt_forms_agree(server, tokenizer):
    ids = tokenizer.encode(PROMPT).ids
    text = server.complete(PROMPT)["choices"][0]["text"]
    for prompt in ([PROMPT], ids, [ids]):
        assert server.complete(prompt)["choices"][0]["text"] == text


def test_usage_metrics_and_acceptance_agree_with_what_was_emitted(server):
    before = server.metrics()
    answers = [server.complete(PROMPT, max_tokens=20 + i) for i in range(3)]
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    num_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    stats = [answer["metrics"]["speculative_decoding"] for answer in answers]
    assert grown("tandem_generation_tokens_total") == num_tokens
    assert grown("tandem_prompt_tokens_total") == sum(a["usage"]["prompt_tokens"] for a in answers)
    assert grown("tandem_spec_decode_accepted_tokens_total") == sum(
        s["num_accepted_draft_tokens"] for s in stats
    )
    assert grown("tandem_spec_decode_draft_tokens_total") == sum(
        s["num_draft_tokens"] for s in stats
    )
    assert grown('tandem_requests_total{finish_reason="length"}') == 3


def test_metrics_are_valid_and_hold_the_names_that_tools_read(server):
    families = {
        family.name
        for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    }
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_success",
        "tandem_generation_tokens",
    } <= families


def test_a_request_that_fills_the_context_ends_with_length(server):
    response = server.post([1] * 8192)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/health", "/ready"])
def test_health_is_good(server, path):
    assert httpx.get(server.url + path).status_code == 200


def test_a_restart_and_a_draft_model_change_no_byte_and_ctrl_c_ends_it(server, model_dir):
    """The model as its own draft: everything is accepted, and the text stays."""
    expected = [choices(server.complete(**{"prompt": PROMPT, **body})) for body in BODIES.values()]
    config = json.dumps({"model": str(model_dir), "method": "draft_model"})
    other = Server.start("--speculative-config", config, "--max-model-len", "512")
    engine = Path(f"/proc/{other.engine_pid()}")
    try:
        drafted = [other.complete(**{"prompt": PROMPT, **body}) for body in BODIES.values()]
        assert [choices(answer) for answer in drafted] == expected
        stats = drafted[0]["metrics"]["speculative_decoding"]
        assert stats["num_accepted_draft_tokens"] == stats["num_draft_tokens"] > 0
    finally:
        assert other.stop(signal.SIGINT) == 0
    assert not engine.exists()
