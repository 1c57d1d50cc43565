"""An engine process without a model: the real wire, the real step record, and a text to compute.

The next token is `(3 * sum of all tokens + 1) % 40`. A prompt that starts with one of the tokens of
`DEEDS` does that deed when its output has as many tokens as its second token says. `model_path` is
a folder that tells it how to start (`broken`, `slow`), and where it writes what it is sent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from engine.config import EngineConfig
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineRequest,
    RequestOutput,
    Shutdown,
    StepOutput,
    StepStats,
)
from engine.step_recorder import StepRecorder

VOCAB_SIZE = 40
MAX_NUM_SEQS = 4
STEP_SECONDS = 0.002


def continuation(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    text = list(token_ids)
    for _ in range(num_tokens):
        text.append((3 * sum(text) + 1) % VOCAB_SIZE)
    return text[len(token_ids) :]


def fail() -> None:
    raise RuntimeError("poisoned")


DEEDS: dict[int, Callable[[], None]] = {
    50: os.abort,
    51: lambda: os._exit(3),
    52: fail,
    53: threading.Event().wait,
}


class ScriptedEngine:
    def __init__(self, socket: zmq.Socket[bytes], recorder: StepRecorder, log: Path) -> None:
        self._socket = socket
        self._recorder = recorder
        self._log = log
        self._requests: dict[str, AddRequest] = {}
        self._tokens: dict[str, list[int]] = {}
        self._answers: list[RequestOutput] = []

    def run(self) -> None:
        self.say(ready())
        while self._receive():
            if self._requests or self._answers:
                self.say(self._step())
                self._recorder.clear()

    def say(self, message: EngineMessage) -> None:
        self._socket.send(msgspec.msgpack.encode(message))

    def _receive(self) -> bool:
        while self._socket.poll(0 if self._requests or self._answers else None):
            match msgspec.msgpack.decode(self._socket.recv(), type=EngineRequest):
                case AddRequest() as request:
                    with self._log.open("a") as log:
                        log.write(f"{request.request_id} {len(request.output_token_ids)}\n")
                    self._requests[request.request_id] = request
                    self._tokens[request.request_id] = list(request.output_token_ids)
                case AbortRequest(request_id=request_id):
                    if self._requests.pop(request_id, None) is not None:
                        self._answers.append(
                            RequestOutput(request_id=request_id, finish_reason="abort")
                        )
                case Shutdown():
                    return False
        return True

    def _step(self) -> StepOutput:
        time.sleep(STEP_SECONDS)
        outputs, self._answers = self._answers, []
        running = list(self._requests.values())[:MAX_NUM_SEQS]
        self._recorder.record([request.request_id for request in running])
        outputs += [self._output(request) for request in running]
        stats = StepStats(
            phase="decode",
            num_running=min(len(self._requests), MAX_NUM_SEQS),
            num_waiting=max(len(self._requests) - MAX_NUM_SEQS, 0),
            kv_cache_usage_ratio=0.0,
        )
        return StepOutput(outputs=outputs, stats=stats)

    def _output(self, request: AddRequest) -> RequestOutput:
        tokens = self._tokens[request.request_id]
        deed, when = request.prompt_token_ids[:2]
        if deed in DEEDS and len(tokens) == when:
            DEEDS[deed]()
        is_first = len(tokens) == len(request.output_token_ids)
        tokens += continuation([*request.prompt_token_ids, *tokens], 1)
        is_last = len(tokens) == request.sampling_params.max_tokens
        if is_last:
            del self._requests[request.request_id]
        return RequestOutput(
            request_id=request.request_id,
            new_token_ids=tokens[-1:],
            finish_reason="length" if is_last else None,
            queue_seconds=0.0 if is_first else None,
            num_cached_tokens=0 if is_first else None,
        )


def ready() -> EngineReady:
    return EngineReady(
        vocab_size=VOCAB_SIZE,
        max_model_len=10_000,
        max_num_seqs=MAX_NUM_SEQS,
        num_speculative_tokens=0,
        speculative_method="none",
        device="cpu",
        dtype="float32",
        eos_token_ids=[],
        load_seconds=0.0,
    )


def exit_with_front_end() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> None:
    folder = Path(sys.argv[1])
    config = msgspec.json.decode((folder / "engine.json").read_bytes(), type=EngineConfig)
    state = Path(config.model_path)
    threading.Thread(target=exit_with_front_end, daemon=True).start()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{folder / 'engine.sock'}")
        engine = ScriptedEngine(socket, StepRecorder(folder), state / "added")
        (state / "pid").write_text(str(os.getpid()))
        while (state / "slow").exists():
            time.sleep(0.01)
        try:
            if (state / "broken").exists():
                raise RuntimeError("the model is broken")
            engine.run()
        except RuntimeError as error:
            engine.say(EngineDead(message=str(error)))
            sys.exit(1)


if __name__ == "__main__":
    main()
