"""An engine that says what it is told to say, one step per look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from app.dispatch.output_stream import OutputStream
from app.errors import TandemError
from app.text.tokenizer import Tokenizer
from engine.messages import AddRequest, EngineReady, RequestOutput, TokenLogprobs

MAX_MODEL_LEN = 64
NUM_SPECULATIVE_TOKENS = 4

Script = Callable[[AddRequest], list[RequestOutput]]


class ScriptedStream(OutputStream):
    """Gives one output at each look; waits for ever when the script ends too early."""

    def __init__(
        self,
        requests: Sequence[AddRequest],
        outputs: Sequence[RequestOutput],
        abort: Callable[[str], None],
    ) -> None:
        super().__init__([request.request_id for request in requests], abort)
        self._script = list(outputs)

    async def get(self, timeout: float | None = None) -> list[RequestOutput]:
        if self._script:
            self.put(self._script.pop(0))
        return await super().get(timeout)


class FakeEngineClient:
    """Remembers what it was asked; `error` is raised in place of being ready."""

    def __init__(self, script: Script, *, vocab_size: int) -> None:
        self.script = script
        self.error: TandemError | None = None
        self.requests: list[AddRequest] = []
        self.streams: list[ScriptedStream] = []
        self.aborted: list[str] = []
        self.tenants: list[str] = []
        self.asked = asyncio.Event()
        self._model = EngineReady(
            vocab_size=vocab_size,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=8,
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
            speculative_method="suffix",
            device="cpu",
            dtype="float32",
            eos_token_ids=[0],
            load_seconds=1.0,
        )

    def require_model(self) -> EngineReady:
        if self.error is not None:
            raise self.error
        return self._model

    def require_ready(self) -> None:
        self.require_model()

    def require_alive(self) -> None:
        pass

    def generate(self, requests: Sequence[AddRequest], *, tenant: str = "") -> ScriptedStream:
        self.tenants.append(tenant)
        self.requests += requests
        self.asked.set()
        outputs = [output for request in requests for output in self.script(request)]
        self.streams.append(ScriptedStream(requests, outputs, self.aborted.append))
        return self.streams[-1]


def says(tokenizer: Tokenizer, text: str, *, tokens_per_step: int = 1, eos: bool = True) -> Script:
    """Every request gets the tokens of `text` and EOS, as many as it may have.

    In a step of k tokens, k - 1 were drafted. Token i of the text has logprob -i, the most likely
    token is always token 1, with logprob -0.5.
    """
    token_ids = tokenizer.encode(text) + ([0] if eos else [])

    def script(request: AddRequest) -> list[RequestOutput]:
        params = request.sampling_params
        mine = token_ids[: params.max_tokens]
        finish_reason = "stop" if eos and len(mine) == len(token_ids) else "length"
        starts = range(0, max(len(mine), 1), tokens_per_step)
        steps = [mine[i : i + tokens_per_step] for i in starts]
        outputs = []
        for start, step in zip(starts, steps, strict=True):
            is_last = start + len(step) == len(mine)
            outputs.append(
                RequestOutput(
                    request_id=request.request_id,
                    new_token_ids=step,
                    logprobs=_logprobs(step, start, params.num_logprobs),
                    prompt_logprobs=None if start else _prompt_logprobs(request),
                    finish_reason=finish_reason if is_last else None,
                    stop_token_id=0 if is_last and finish_reason == "stop" else None,
                    num_draft_tokens=max(0, len(step) - 1),
                    num_accepted_tokens=max(0, len(step) - 1),
                    queue_seconds=None if start else 0.25,
                    num_cached_tokens=None if start else 1,
                )
            )
        return outputs

    return script


def _logprobs(
    token_ids: list[int], start: int, num_logprobs: int | None
) -> list[TokenLogprobs] | None:
    if num_logprobs is None:
        return None
    top = [(1, -0.5), (2, -0.75)][:num_logprobs]
    return [
        TokenLogprobs(token_id, -float(start + position), top, rank=3)
        for position, token_id in enumerate(token_ids)
    ]


def _prompt_logprobs(request: AddRequest) -> list[TokenLogprobs] | None:
    num = request.sampling_params.num_prompt_logprobs
    return None if num is None else _logprobs(request.prompt_token_ids[1:], 1, num)
