"""The engine process: `python -m engine.process FOLDER`, started and watched by the front end.

FOLDER is private and holds `engine.json` (the configuration) and `engine.sock`, where the front end
listens. The process ends when told to, or when its standard input closes: the front end is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch
import zmq

from engine.backends.base import Backend, ForwardRow
from engine.backends.cpu import CpuBackend
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler, load_tokenizer
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineRequest,
    Shutdown,
)
from engine.model_runner import ModelRunner
from engine.models.config import ModelError
from engine.recorded_model_runner import RecordedModelRunner
from engine.scheduler import Scheduler
from engine.slots import SlotTable
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.grammar import GrammarProposer
from engine.spec_decode.prediction import PredictionProposer
from engine.spec_decode.proposer import Proposer
from engine.spec_decode.step_cost import StepCost
from engine.spec_decode.suffix import SuffixProposer
from engine.spec_decode.synthetic import SyntheticProposer
from engine.step_recorder import StepRecorder

logger = logging.getLogger(__name__)

MakeModelRunner = Callable[[Backend, Drafter], ModelRunner]
BuildCore = Callable[[EngineConfig, MakeModelRunner], tuple[EngineCore, EngineReady]]


class EngineProcess:
    """Messages in, steps, messages out."""

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes], recorder: StepRecorder) -> None:
        self._core = core
        self._socket = socket
        self._recorder = recorder
        self._decoder = msgspec.msgpack.Decoder(EngineRequest)
        self._should_exit = False

    def run(self) -> None:
        """Loop until told to shut down; waits for messages only when there is nothing to do."""
        while not self._should_exit:
            self._receive(wait=not self._core.has_work)
            if self._core.has_work:
                send(self._socket, self._core.step())
                self._recorder.clear()

    def _receive(self, *, wait: bool) -> None:
        if wait:
            self._handle(self._socket.recv())
        while not self._should_exit and self._socket.poll(0):
            self._handle(self._socket.recv())

    def _handle(self, frame: bytes) -> None:
        message = self._decoder.decode(frame)
        match message:
            case AddRequest():
                self._recorder.record([message.request_id])
                self._core.add_request(message)
                self._recorder.clear()
            case AbortRequest():
                self._core.abort_request(message.request_id)
            case Shutdown():
                self._should_exit = True


def build_core(
    config: EngineConfig, make_model_runner: MakeModelRunner = ModelRunner
) -> tuple[EngineCore, EngineReady]:
    """Load the models and put the engine together.

    Raises `ModelError` with a message for a person when a model cannot be served.
    """
    started = time.monotonic()
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    target = _load(config.model_path, config)
    controller = DraftLengthController(
        num_speculative_tokens=config.speculative.num_speculative_tokens
    )
    _measure_steps(target, controller.cost)
    drafter = Drafter(_proposers(config, target), controller)
    slots = SlotTable(config.max_num_seqs)
    scheduler = Scheduler(
        slots,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_consecutive_prefills=config.max_consecutive_prefills,
        max_consecutive_decodes=config.max_consecutive_decodes,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    core = EngineCore(
        target.info,
        scheduler=scheduler,
        slots=slots,
        model_runner=make_model_runner(target, drafter),
        drafter=drafter,
        grammars=_grammars(config, target),
    )
    return core, _ready(config, target, time.monotonic() - started)


def _load(model_path: str, config: EngineConfig) -> Backend:
    backend = CpuBackend(
        Path(model_path),
        dtype=config.dtype,
        num_slots=config.max_num_seqs,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        kernels=config.kernels,
    )
    backend.warmup()
    return backend


def _measure_steps(backend: Backend, cost: StepCost) -> None:
    """Time one row of each width, so that the first drafts have a sensible length."""
    widths = [w for w in backend.info.widths if w <= backend.info.max_model_len]
    # The first step gets kernels and memory ready.
    _seconds_of_step(backend, widths[-1])
    for width in widths:
        cost.observe(width, _seconds_of_step(backend, width))


def _seconds_of_step(backend: Backend, width: int) -> float:
    row = ForwardRow(slot_id=0, start_position=0, token_ids=(0,) * width, num_logits=width)
    started = time.perf_counter()
    backend.forward((row,))
    return time.perf_counter() - started


def _proposers(config: EngineConfig, target: Backend) -> list[Proposer]:
    """In the order of preference. What a request or its grammar says comes before any guess."""
    speculative = config.speculative
    if speculative.method == "none":
        return []
    if speculative.method == "synthetic":
        rates = speculative.acceptance_rates
        logger.warning(
            "drafts are SYNTHETIC, for capacity tests: answers to repeated prompts are drafted "
            "from their first answer, to be accepted at the rates %s",
            rates,
        )
        return [SyntheticProposer(rates, max_cached_tokens=speculative.max_cached_tokens)]
    proposers: list[Proposer] = [PredictionProposer(), GrammarProposer()]
    if speculative.method in ("suffix", "suffix_and_draft_model"):
        proposers.append(SuffixProposer(speculative))
    if speculative.method in ("draft_model", "suffix_and_draft_model"):
        assert speculative.draft_model_path is not None
        proposers.append(
            DraftModelProposer(
                _load(speculative.draft_model_path, config),
                vocab_size=target.info.vocab_size,
                max_num_batched_tokens=config.max_num_batched_tokens,
            )
        )
    return proposers


def _grammars(config: EngineConfig, target: Backend) -> GrammarCompiler:
    return GrammarCompiler(
        partial(
            load_tokenizer,
            Path(config.model_path) / "tokenizer.json",
            vocab_size=target.info.vocab_size,
            eos_token_ids=target.info.eos_token_ids,
        ),
        config.grammar_limits,
    )


def _ready(config: EngineConfig, target: Backend, load_seconds: float) -> EngineReady:
    speculative = config.speculative
    drafts = speculative.method != "none"
    return EngineReady(
        vocab_size=target.info.vocab_size,
        max_model_len=target.info.max_model_len,
        max_num_seqs=config.max_num_seqs,
        num_speculative_tokens=speculative.num_speculative_tokens if drafts else 0,
        speculative_method=speculative.method,
        device=config.device,
        dtype=target.info.dtype,
        eos_token_ids=list(target.info.eos_token_ids),
        load_seconds=load_seconds,
    )


def send(socket: zmq.Socket[bytes], message: EngineMessage) -> None:
    socket.send(msgspec.msgpack.encode(message))


def run_engine(config: EngineConfig, address: str, recorder: StepRecorder, build: BuildCore) -> int:
    """Load, serve, and say why if it ends in an error. Returns the exit status."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        try:
            core, ready = build(config, partial(RecordedModelRunner, recorder=recorder))
            # What is loaded stays: a collection that went through it would hold a step up by 0.1 s.
            gc.collect()
            gc.freeze()
            send(socket, ready)
            EngineProcess(core, socket, recorder).run()
        except ModelError as error:
            send(socket, EngineDead(message=str(error)))
            return 1
        except Exception as error:
            logger.exception("the engine failed")
            send(socket, EngineDead(message=f"{type(error).__name__}: {error}"))
            return 1
    return 0


def _exit_with_front_end(folder: Path) -> None:
    """Standard input is a pipe that the front end never writes to: it ends with the front end."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    # Nobody else is left to do it.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main(build: BuildCore = build_core) -> None:
    # Ctrl-C in a terminal is for the front end, which then tells the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    # The thread may remove the folder at any time, and could not while files are made in it.
    config = msgspec.json.decode((folder / "engine.json").read_bytes(), type=EngineConfig)
    recorder = StepRecorder(folder)
    threading.Thread(target=_exit_with_front_end, args=(folder,), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(run_engine(config, f"ipc://{folder / 'engine.sock'}", recorder, build))


if __name__ == "__main__":
    main()
