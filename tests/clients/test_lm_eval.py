"""lm-eval's local-completions, against the same model scored in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from tests.clients.engine_scorer import EngineScorer

FOLDER = Path(__file__).parent


def evaluate(**options: Any) -> tuple[dict[str, float], list[Any]]:
    """The scores of the task, and the log-likelihoods that they are made of."""
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    found = simple_evaluate(tasks=["capitals"], task_manager=manager, bootstrap_iters=0, **options)
    scores = {name: found["results"]["capitals"][f"{name},none"] for name in ("acc", "acc_norm")}
    samples = sorted(found["samples"]["capitals"], key=lambda sample: sample["doc_id"])
    return scores, [sample["filtered_resps"] for sample in samples]


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> tuple[dict[str, float], list[Any]]:
    return evaluate(model=EngineScorer(model_dir))


@pytest.mark.parametrize("tokenizer_backend", ["remote", "huggingface"])
def test_the_score_is_the_one_computed_in_process(server, model_dir, expected, tokenizer_backend):
    scores, likelihoods = evaluate(
        model="local-completions",
        model_args={
            "model": "SmolLM2-135M-Instruct",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer": str(model_dir),
            "tokenizer_backend": tokenizer_backend,
            "tokenized_requests": True,
            "num_concurrent": 4,
            "max_length": 512,
            "max_retries": 1,
        },
    )
    assert likelihoods == expected[1]
    assert scores == expected[0]
    assert 0.3 < scores["acc"] < 1
