from __future__ import annotations

import msgspec
import pytest

from app.api.completion_request import CompletionRequest
from app.errors import InvalidRequestError
from app.generation.request_limits import RequestLimits
from app.settings import Settings
from app.text.prompt import Prompt

LONG = Prompt([1] * 8000)


@pytest.fixture
def check_size(engine):
    model = msgspec.structs.replace(engine.require_model(), max_model_len=8192)
    limits = RequestLimits(Settings())

    def check(num_prompts=1, **fields):
        body = CompletionRequest(prompt="Hi", **fields)
        limits.check_size(body, [LONG] * num_prompts, model)

    return check


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt_logprobs", {"prompt_logprobs": 20}),
        ("logprobs", {"logprobs": 20, "echo": True}),
        ("logprobs", {"logprobs": 20, "max_tokens": 10**12, "num_prompts": 1000}),
    ],
    ids=["prompt", "echo", "output"],
)
def test_more_logprobs_than_memory_can_hold_are_refused_by_name(check_size, param, fields):
    """local-inference-lab/vllm#264: logprobs of a long prompt took all memory."""
    num_choices = {"n": 128} if "num_prompts" not in fields else {}
    with pytest.raises(InvalidRequestError) as caught:
        check_size(**fields, **num_choices)
    assert caught.value.param == param
    check_size(**fields | {"num_prompts": 1})


def test_the_candidates_of_all_prompts_count(check_size):
    check_size(num_prompts=51, best_of=20)
    with pytest.raises(InvalidRequestError) as caught:
        check_size(num_prompts=52, best_of=20)
    assert caught.value.param == "n"
