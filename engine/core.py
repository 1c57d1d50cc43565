"""The engine's loop body: schedule, execute, update. It knows neither sockets nor text."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future, wait

import msgspec

from engine.backends.base import ModelInfo
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.state import GrammarError, GrammarState
from engine.messages import AddRequest, FinishReason, RequestOutput, StepOutput, StepStats
from engine.model_runner import ModelRunner, RequestResult, StepResult
from engine.request import Request
from engine.scheduler import Scheduler
from engine.slots import SlotTable
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.verifier import VerifiedTokens

# How long a step may wait for a grammar where there is nothing else to do.
_COMPILE_WAIT_SECONDS = 0.005


class EngineCore:
    """Owns the requests from `add_request` to their one terminal output."""

    def __init__(
        self,
        model: ModelInfo,
        *,
        scheduler: Scheduler,
        slots: SlotTable,
        model_runner: ModelRunner,
        drafter: Drafter,
        grammars: GrammarCompiler,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._slots = slots
        self._model_runner = model_runner
        self._drafter = drafter
        self._grammars = grammars
        self._compiling: dict[str, Future[GrammarState]] = {}
        self._requests: dict[str, Request] = {}
        self._answers: list[RequestOutput] = []

    @property
    def has_work(self) -> bool:
        return bool(self._answers or self._compiling) or self._scheduler.has_work

    def add_request(self, message: AddRequest) -> None:
        """Queue a request; one that cannot run is answered with an error by the next step."""
        problem = self._problem(message)
        if problem is not None:
            self._answers.append(
                RequestOutput(request_id=message.request_id, finish_reason="error", error=problem)
            )
            return
        request = Request.from_message(
            message,
            eos_token_ids=self._model.eos_token_ids,
            max_model_len=self._model.max_model_len,
        )
        self._requests[request.request_id] = request
        grammar = request.sampling_params.grammar
        if grammar is None:
            self._scheduler.add_request(request)
        else:
            self._compiling[request.request_id] = self._grammars.compile(grammar)

    def abort_request(self, request_id: str) -> None:
        """End a request at whatever stage it is; an unknown or finished one is ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request)
            self._answers.append(RequestOutput(request_id=request_id, finish_reason="abort"))

    def step(self) -> StepOutput:
        """One engine iteration: a prefill or a decode step for the requests that are due."""
        started = time.perf_counter()
        self._add_compiled()
        scheduled = self._scheduler.schedule()
        outputs, self._answers = self._answers, []
        if scheduled is None:
            return StepOutput(outputs=outputs, stats=self._stats())
        result = self._model_runner.execute(scheduled)
        outputs += self._update_from_output(result)
        stats = msgspec.structs.replace(
            self._stats(),
            phase=scheduled.phase,
            step_seconds=time.perf_counter() - started,
            draft_seconds=result.draft_seconds,
            num_rows=len(result.results),
            num_tokens=result.num_tokens,
        )
        return StepOutput(outputs=outputs, stats=stats)

    def _update_from_output(self, result: StepResult) -> list[RequestOutput]:
        outputs = []
        for request_result in result.results:
            request, verified = request_result.request, request_result.verified
            self._scheduler.update_computed(request, request_result.num_computed_tokens)
            if verified is None:
                continue
            outputs.append(_request_output(request_result))
            request.num_sent_outputs += 1
            if verified.finish_reason is not None:
                self._finish(request)
        return outputs

    def _add_compiled(self) -> None:
        """Requests whose grammar is ready go to the scheduler; others never wait for them."""
        if self._compiling and not (self._answers or self._scheduler.has_work):
            wait(self._compiling.values(), timeout=_COMPILE_WAIT_SECONDS)
        for request_id in [name for name, future in self._compiling.items() if future.done()]:
            request, future = self._requests[request_id], self._compiling.pop(request_id)
            try:
                request.start_grammar(future.result())
            except GrammarError as error:
                self._finish(request)
                self._answers.append(
                    RequestOutput(request_id=request_id, finish_reason="error", error=str(error))
                )
            else:
                self._scheduler.add_request(request)

    def _finish(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._compiling.pop(request.request_id, None)
        self._scheduler.finish_request(request)
        self._drafter.finish(request)

    def _problem(self, message: AddRequest) -> str | None:
        """Why a message cannot become a request. The front end has checked it: this is the net."""
        model = self._model
        num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
        if message.request_id in self._requests:
            return "the request id is already in use"
        if not message.prompt_token_ids:
            return "the prompt is empty"
        if num_tokens >= model.max_model_len:
            return f"{num_tokens} tokens leave no room in a context of {model.max_model_len}"
        known_ids = (*message.prompt_token_ids, *message.output_token_ids)
        params = message.sampling_params
        token_ids = (
            *known_ids,
            *message.prediction_token_ids,
            *params.stop_token_ids,
            *params.logit_bias,
            *(params.allowed_token_ids or ()),
            *itertools.chain(*params.bad_words),
        )
        if min(token_ids) < 0 or max(token_ids) >= model.vocab_size:
            return f"a token id is outside the vocabulary of {model.vocab_size}"
        return None

    def _stats(self) -> StepStats:
        capacity = self._slots.num_slots * self._model.max_model_len
        return StepStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting + len(self._compiling),
            kv_cache_usage_ratio=self._scheduler.num_running_tokens / capacity,
        )


def _request_output(result: RequestResult) -> RequestOutput:
    request, verified, draft = result.request, result.verified, result.draft
    assert verified is not None
    is_first = request.num_sent_outputs == 0
    finish_reason: FinishReason | None = verified.finish_reason
    has_logprobs = request.sampling_params.num_logprobs is not None
    return RequestOutput(
        request_id=request.request_id,
        new_token_ids=verified.token_ids,
        logprobs=verified.logprobs if has_logprobs else None,
        prompt_logprobs=request.prompt_logprobs
        if is_first and request.wants_prompt_logprobs
        else None,
        finish_reason=finish_reason,
        stop_token_id=_stop_token(request, verified),
        error=verified.error,
        draft_kind=draft.kind if draft else None,
        num_draft_tokens=len(draft.token_ids) if draft else 0,
        num_accepted_tokens=verified.num_accepted_tokens,
        queue_seconds=request.queue_seconds if is_first else None,
        num_cached_tokens=request.num_cached_tokens if is_first else None,
    )


def _stop_token(request: Request, verified: VerifiedTokens) -> int | None:
    """The token that is an end and no text; a grammar ends an output behind its last text."""
    if verified.finish_reason != "stop" or not verified.token_ids:
        return None
    token_id = verified.token_ids[-1]
    return token_id if request.is_stop_token(token_id) else None
