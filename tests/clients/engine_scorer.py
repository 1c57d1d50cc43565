"""The engine in this process, as a model of lm-eval: no server, no HTTP, no JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.process import build_core
from tests.engine.driver import add_request, run_one


class EngineScorer(TemplateLM):
    """Scores continuations, as lm-eval asks for them, with all the tokens of a text at once."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__()
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._core, _ = build_core(EngineConfig(model_path=str(model_dir), max_model_len=512))

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.token_to_id("<|im_end|>")

    def tok_encode(self, string: str, *_: Any, **__: Any) -> list[int]:
        return self._tokenizer.encode(string).ids

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        return [self._score(context, continuation) for _, context, continuation in requests]

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        request = add_request("score", context + continuation, max_tokens=1, num_prompt_logprobs=1)
        logprobs = run_one(self._core, request).prompt_logprobs
        assert logprobs is not None
        scored = logprobs[len(context) - 1 :]
        is_greedy = all(token.logprob == token.top[0][1] for token in scored)
        return sum(token.logprob for token in scored), is_greedy

    def loglikelihood_rolling(self, requests: Any, **_: Any) -> Any:
        raise NotImplementedError

    def generate_until(self, requests: Any, **_: Any) -> Any:
        raise NotImplementedError
