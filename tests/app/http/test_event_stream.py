from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.event_stream import event

# What no detokenizer gives: halves of surrogate pairs.
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
# Two encoders write it in two ways.
SMALL = -1e-5
TOP = [None, {"1": {"logprob": SMALL, "rank": 1, "decoded_token": "a"}}]
CHOICE = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}
CHUNK = {"id": "cmpl-1", "created": 1, "model": "tiny", "choices": [CHOICE]}


def standard_event(chunk: dict[str, Any]) -> bytes:
    data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()


@given(texts)
def test_any_text_is_written_as_by_the_standard_library(text):
    chunk = {**CHUNK, "choices": [{**CHOICE, "text": text}]}
    assert event(chunk) == standard_event(chunk)


@pytest.mark.parametrize(
    "chunk",
    [
        {**CHUNK, "choices": [CHOICE, {**CHOICE, "logprobs": {"token_logprobs": [SMALL]}}]},
        {**CHUNK, "choices": [CHOICE, {**CHOICE, "prompt_logprobs": TOP}]},
        {**CHUNK, "prompt_logprobs": TOP},
        {**CHUNK, "choices": [], "metrics": {"speculative_decoding": {"rate": SMALL}}},
        {"error": {"message": "a", "param": None}},
    ],
    ids=["logprobs", "prompt logprobs", "chat's prompt logprobs", "metrics", "error"],
)
def test_what_may_have_numbers_is_written_as_by_the_standard_library(chunk):
    assert event(chunk) == standard_event(chunk)
