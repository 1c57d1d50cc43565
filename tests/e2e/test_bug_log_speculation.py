"""Reports of speculation that changed the output, as checks of a real server and model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import Server
from tests.e2e.streamed_answer import StreamedAnswer

pytestmark = pytest.mark.usefixtures("unharmed")

REPEATED = "one two three four five six seven eight nine ten. " * 4 + "one"
STORY = "Once upon a time, in a town at the edge of the sea,"
SPECULATION = (
    {"speculative": False},
    {"speculative": {"num_speculative_tokens": 1}},
    {"speculative": {"num_speculative_tokens": 7}},
    {},
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}


def agreed(server, prompt: object, **body: object) -> list[dict]:
    """The choices, which are the same with every kind of speculation."""
    answers = [server.complete(prompt, **body, **extra) for extra in SPECULATION]
    outcomes = [(a["choices"], a["usage"]["completion_tokens"]) for a in answers]
    assert outcomes == outcomes[:1] * len(outcomes)
    return answers[0]["choices"]


def test_a_penalty_counts_every_token_of_a_step(server):
    """sglang#33643 (73), vllm#18902 (74)."""
    free = agreed(server, REPEATED, max_tokens=48)
    penalised = agreed(server, REPEATED, max_tokens=48, frequency_penalty=1.5)
    assert penalised != free


@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_json_by_a_schema_is_valid_with_and_without_speculation(server, seed):
    """vllm#9423, vllm#15554, vllm#27969, openvino.genai#4081, lmdeploy#4559 (76): 20 seeds."""
    schema = {"name": "animal", "schema": SCHEMA}
    body = {
        "response_format": {"type": "json_schema", "json_schema": schema},
        "temperature": 1,
        "max_tokens": 64,
        "n": 4,
        "seed": seed,
    }
    for choice in agreed(server, "An animal as JSON: ", **body):
        assert choice["finish_reason"] == "stop"
        animal = json.loads(choice["text"])
        assert animal.keys() == {"name", "kind", "age"}
        assert animal["kind"] in ("cat", "dog")
        assert 0 <= animal["age"] <= 30


def test_bias_and_min_p_are_taken_with_speculation(server):
    """vLLM's _validate_spec_decode (77)."""
    body = {"logit_bias": {"28": -5, "260": 2.5}, "min_p": 0.1, "temperature": 0.9, "seed": 6}
    agreed(server, STORY, max_tokens=16, **body)
    agreed(server, STORY, max_tokens=16, logit_bias={"260": 4}, min_p=0.1)


def test_a_seed_gives_the_same_text_again_and_in_company(server):
    """vllm#6038, vllm#13196 (80)."""
    body = {"temperature": 1, "seed": 77, "max_tokens": 16}
    alone = agreed(server, STORY, **body)
    assert server.complete(STORY, **body)["choices"] == alone
    others = [{"temperature": 1, "seed": seed, "max_tokens": 20} for seed in range(7)]
    with ThreadPoolExecutor(8) as threads:
        busy = [threads.submit(server.complete, f"{STORY} {i}", **o) for i, o in enumerate(others)]
        together = threads.submit(server.complete, STORY, **body).result()["choices"]
        for future in busy:
            future.result()
    assert together == alone


def test_max_tokens_is_never_exceeded(server):
    """Report 82."""
    for max_tokens in (1, 2, 3, 5, 8, 9, 10, 17):
        (choice,) = agreed(server, REPEATED, max_tokens=max_tokens, return_token_ids=True)
        assert len(choice["token_ids"]) == max_tokens
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_more_is_drafted_than_could_be_accepted(server, max_tokens):
    """sglang#13212, TensorRT-LLM#14724 (113)."""
    speculative = {"num_speculative_tokens": 7}
    answer = server.complete(REPEATED, max_tokens=max_tokens, speculative=speculative)
    stats = answer["metrics"]["speculative_decoding"]
    assert stats["num_draft_tokens"] <= max_tokens - 1


def test_accepted_tokens_behind_the_end_are_not_counted(server):
    """vllm#56101 (112): a stop within a run that is accepted."""
    free = server.complete(REPEATED, max_tokens=24)
    stopped = server.complete(REPEATED, max_tokens=24, stop=free["choices"][0]["text"][20:26])
    num_accepted = [
        answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        for answer in (stopped, free)
    ]
    assert 0 < num_accepted[0] <= stopped["usage"]["completion_tokens"]
    assert num_accepted[0] < num_accepted[1]


@pytest.fixture(scope="module")
def narrow(model_dir) -> Server:
    """Little room: two slots of 64 tokens, and a draft model whose context is as short."""
    assert model_dir
    config = json.dumps({"model": str(model_dir)})
    server = Server.start(
        "--max-model-len", "64", "--max-num-seqs", "2", "--speculative-config", config
    )
    yield server
    assert server.stop() == 0


def test_the_first_request_of_a_server_is_like_the_second(narrow):
    """model-serving-minefield#36 (88)."""
    first = StreamedAnswer.read(narrow, REPEATED[:60], max_tokens=24)
    second = StreamedAnswer.read(narrow, REPEATED[:60], max_tokens=24)
    assert first.choices == second.choices


@pytest.mark.parametrize("room", range(1, 10))
def test_an_output_that_fills_the_context_ends_with_length(narrow, room):
    """vllm#7047, vllm#57941, llama.cpp#10641, llama.cpp#22554, ArcticInference#151 (83, 14)."""
    ids = ([1, 1232, 28, 216] * 16)[: 64 - room]
    (choice,) = agreed(narrow, ids, max_tokens=32, ignore_eos=True, return_token_ids=True)
    assert len(choice["token_ids"]) == room
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("num_tokens", [64, 65, 200])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(narrow, num_tokens):
    """llama.cpp#10641, vllm#7047 (14)."""
    response = narrow.post([5] * num_tokens)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert f" {num_tokens} " in error["message"]
    assert " 64 " in error["message"]


def test_requests_that_wait_for_room_say_what_they_say_alone(narrow):
    """vllm#49620, vllm PR#28558, vllm#2607 (85): here no request is ever put back."""
    prompts = [f"{i} {REPEATED[:60]}" for i in range(4)]
    alone = [agreed(narrow, prompt, max_tokens=24) for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda p: narrow.complete(p, max_tokens=24), prompts))
    assert [answer["choices"] for answer in together] == alone
