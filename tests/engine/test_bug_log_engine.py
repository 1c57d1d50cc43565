"""Reports of speculation that miscounts, over a model that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from engine.messages import SamplingParams
from engine.sampling.sampler import sample
from tests.engine.driver import add_request, run, run_one
from tests.engine.fake_backend import (
    VOCAB_SIZE,
    FakeBackend,
    ScriptedProposer,
    build_core,
    continuation,
    next_token,
)

PROMPT = [5, 3, 2, 7, 1]
PROPOSERS = {
    "none": lambda: [],
    "right": lambda: [ScriptedProposer()],
    "alternating": lambda: [ScriptedProposer(wrong_every=2)],
}


def penalised(num_tokens: int, frequency_penalty: float) -> list[int]:
    """The greedy text by hand, one token at a time."""
    text = list(PROMPT)
    for _ in range(num_tokens):
        best, output = next_token(text), text[len(PROMPT) :]
        logits = [
            -((i - best) % VOCAB_SIZE) - frequency_penalty * output.count(i)
            for i in range(VOCAB_SIZE)
        ]
        text.append(int(np.argmax(logits)))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("proposers", PROPOSERS.values(), ids=PROPOSERS.keys())
def test_a_frequency_penalty_counts_each_token_of_a_draft_once(proposers):
    """vllm#18902, vllm PR#33251 (74), sglang#33643 (73)."""
    request = add_request(
        "a", PROMPT, max_tokens=40, num_speculative_tokens=7, frequency_penalty=1.5
    )
    generation = run_one(build_core(proposers=proposers()), request)
    assert generation.token_ids == penalised(40, 1.5) != continuation(PROMPT, 40)


@pytest.mark.parametrize("proposers", PROPOSERS.values(), ids=PROPOSERS.keys())
def test_requests_that_share_one_slot_say_what_they_say_alone(proposers):
    """vllm#49620, vllm PR#28558, vllm#2607 (85)."""
    core = build_core(FakeBackend(num_slots=1), proposers())
    prompts = [[*PROMPT, i] for i in range(4)]
    generations = run(
        core, [add_request(f"{i}", prompt, max_tokens=30) for i, prompt in enumerate(prompts)]
    )
    for i, prompt in enumerate(prompts):
        assert generations[f"{i}"].token_ids == continuation(prompt, 30)


@pytest.mark.parametrize(
    "logits",
    [
        pytest.param([0.0] * 8, id="all equal"),
        pytest.param([-np.inf] * 7 + [0.0], id="one possible"),
        pytest.param([3e38] * 4 + [-3e38] * 4, id="as large as can be"),
        pytest.param([-3e38] * 8, id="as small as can be"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 2.0])
def test_a_degenerate_distribution_has_a_token(logits, temperature):
    """Report 79: there is no residual to run out of, and no NaN from anything else."""
    row = np.array(logits, dtype=np.float32)
    params = SamplingParams(max_tokens=1, temperature=temperature, top_p=0.9, min_p=0.1)
    for position in range(50):
        token_id = sample(row, params, position)
        assert row[token_id] == row.max()


@pytest.mark.parametrize("num_tokens", range(1, 16))
def test_accepted_tokens_and_steps_add_up_to_the_tokens_emitted(num_tokens):
    """vllm#56101 (112): also where EOS or a limit cuts an accepted draft."""
    eos = continuation(PROMPT, num_tokens)[-1]
    core = build_core(FakeBackend(eos_token_ids=(eos,)), [ScriptedProposer()])
    core.add_request(add_request("a", PROMPT, max_tokens=20, num_speculative_tokens=7))
    emitted: list[int] = []
    while core.has_work:
        for output in core.step().outputs:
            emitted += output.new_token_ids
            own = len(output.new_token_ids) - output.num_accepted_tokens
            assert own in (0, 1)
            assert own == 1 or output.finish_reason is not None
    assert emitted == continuation(PROMPT, emitted.index(eos) + 1)
