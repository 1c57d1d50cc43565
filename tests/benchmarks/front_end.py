"""What the front end alone can carry: text streams from a fake engine, through the whole server.

The server has one core. The other one has the load: a process in the engine's place that also
reads every stream, so that one clock times each token from the engine's socket to the client's.
`make bench-front-end` prints, for steps of one token and of one to four tokens per stream, the
most tokens per second, and the delay and the server's processor time at a given rate.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, islice
from pathlib import Path

import msgspec
import uvloop
import zmq

from app.log_format import configure_logging
from app.model_source import resolve_model
from app.server import bind_socket, serve
from app.settings import Settings
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig
from engine.messages import (
    AddRequest,
    EngineMessage,
    EngineReady,
    EngineRequest,
    RequestOutput,
    StepOutput,
    StepStats,
)

ROOT = Path(__file__).parents[2]
TEXTS = ("README.md", "docs/api.md", "docs/faults.md", "app/server.py")
NUM_PROMPT_CHARS = 2000
MAX_MODEL_LEN = 100_000
# The number of tokens that each step gives to a stream, over and over.
SHAPES = {"1 token": (1,), "1 to 4 tokens": (1, 4, 2, 3)}
# So many steps may be on their way where the engine only waits for the readers.
WINDOWS = {"step by step": 1, "8 steps ahead": 8}
EVENT = re.compile(rb"data: (\{.*?\})\n\n")


class EventChoice(msgspec.Struct):
    text: str = ""
    delta: dict[str, str] = {}


class Event(msgspec.Struct):
    choices: list[EventChoice]


@dataclass
class Stream:
    """One reader. `ends[i]` is the length of the text after step i."""

    connection: socket.socket
    request_id: str = ""
    outputs: list[list[int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    unread: bytes = b""
    num_chars: int = 0
    num_chunks: int = 0
    num_steps: int = 0


@dataclass(frozen=True)
class Measurement:
    num_tokens: int
    seconds: float
    server_seconds: float
    chunks_per_step: float
    delays: list[float]

    def row(self, name: str, load: str) -> str:
        cuts = statistics.quantiles(self.delays, n=100)
        cells = [
            f"{self.num_tokens / self.seconds:,.0f}",
            f"{self.server_seconds / self.seconds:.0%}",
            f"{self.server_seconds / self.num_tokens * 1000:.4f}",
            f"{cuts[49] * 1e3:.1f}",
            f"{cuts[98] * 1e3:.1f}",
            f"{self.chunks_per_step:.2f}",
        ]
        return f"| {name} | {load} | " + " | ".join(cells) + " |"


HEADER = (
    "| a step of a stream | load | tokens/s | server's core | CPU s / 1000 tokens "
    "| delay p50 ms | p99 ms | chunks / step |\n|---|---|---|---|---|---|---|---|"
)


class Load:
    """The engine of the server that is its parent, and all of that server's clients."""

    def __init__(self, engine: zmq.Socket[bytes], options: argparse.Namespace) -> None:
        self._engine = engine
        self._options = options
        self._tokenizer = Tokenizer.from_folder(options.model_path)
        text = "".join((ROOT / name).read_text() for name in TEXTS)
        self._prompts = [
            text[start : start + NUM_PROMPT_CHARS]
            for start in range(0, len(text) - NUM_PROMPT_CHARS, 997)
        ]
        self._event = msgspec.json.Decoder(Event)

    def run(self) -> Iterator[str]:
        self._say(_ready(self._tokenizer, self._options.streams))
        yield HEADER
        self._measure((4,), rate=self._options.rate)
        for name, shape in SHAPES.items():
            yield self._measure(shape, rate=self._options.rate).row(name, "steady")
            for load, window in WINDOWS.items():
                yield self._measure(shape, window=window).row(name, load)

    def _say(self, message: EngineMessage) -> None:
        self._engine.send(msgspec.msgpack.encode(message))

    def _measure(
        self, shape: Sequence[int], *, rate: float | None = None, window: int = 0
    ) -> Measurement:
        num_tokens_per_step = self._options.streams * sum(shape) / len(shape)
        expected_rate = rate or self._options.rate
        num_steps = int(expected_rate * self._options.seconds / num_tokens_per_step)
        streams = [self._open(index, shape, num_steps) for index in range(self._options.streams)]
        self._await_requests(streams)
        interval = num_tokens_per_step / rate if rate else None
        run = _Run(streams, num_steps, interval=interval, window=window)
        measurement = self._drive(run)
        for stream in streams:
            stream.connection.close()
        return measurement

    def _open(self, index: int, shape: Sequence[int], num_steps: int) -> Stream:
        """Ask for a stream; the engine's answer is known already: the prompt, over and over."""
        prompt = self._prompts[index % len(self._prompts)]
        tokens = cycle(self._tokenizer.encode(prompt))
        counts = islice(cycle(shape), index % len(shape), index % len(shape) + num_steps)
        outputs = [list(islice(tokens, count)) for count in counts]
        stream = Stream(socket.create_connection(("127.0.0.1", self._options.port)))
        stream.outputs = outputs
        stream.ends = _text_ends(self._tokenizer, outputs)
        body = {"max_tokens": sum(map(len, outputs)), "stream": True}
        chat = self._options.chat
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        content = msgspec.json.encode(body | asked)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        stream.connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {index}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        stream.connection.setblocking(False)
        return stream

    def _await_requests(self, streams: Sequence[Stream]) -> None:
        waiting = len(streams)
        while waiting:
            message = msgspec.msgpack.decode(self._engine.recv(), type=EngineRequest)
            if isinstance(message, AddRequest):
                index = int(message.request_id.split("-")[1])
                streams[index].request_id = message.request_id
                waiting -= 1

    def _drive(self, run: _Run) -> Measurement:
        with select.epoll() as poll:
            by_number = {stream.connection.fileno(): stream for stream in run.streams}
            for number in by_number:
                poll.register(number, select.EPOLLIN)
            while run.num_done < len(run.streams):
                if run.is_due(time.perf_counter()):
                    message = run.step()
                    run.sent_times.append(time.perf_counter())
                    self._say(message)
                for number, _ in poll.poll(run.patience(time.perf_counter())):
                    self._read(by_number[number], run)
        return run.measurement()

    def _read(self, stream: Stream, run: _Run) -> None:
        data = stream.connection.recv(1 << 16)
        if not data:
            raise RuntimeError(f"a stream ended early: {stream.unread[:500]!r}")
        now = time.perf_counter()
        data = stream.unread + data
        end = 0
        for found in EVENT.finditer(data):
            end = found.end()
            choice = self._event.decode(found[1]).choices[0]
            text = choice.text or choice.delta.get("content", "")
            stream.num_chars += len(text)
            stream.num_chunks += bool(text)
        stream.unread = data[end:]
        run.arrived(stream, now)


class _Run:
    """Steps on their way from the engine to the readers, and what is known of their times."""

    def __init__(
        self, streams: list[Stream], num_steps: int, *, interval: float | None, window: int
    ) -> None:
        self.streams = streams
        self.sent_times: list[float] = []
        self.num_done = 0
        self._num_steps = num_steps
        self._interval = interval
        self._window = window
        self._num_warm = max(num_steps // 5, 1)
        self._num_waiting = [len(streams)] * num_steps
        self._num_arrived = 0
        self._delays: list[float] = []
        self._started = time.perf_counter()
        self._marks: list[tuple[float, float]] = []

    def is_due(self, now: float) -> bool:
        number = len(self.sent_times)
        if number == self._num_steps:
            return False
        if self._interval is None:
            return number < self._num_arrived + self._window
        return now >= self._started + number * self._interval

    def patience(self, now: float) -> float:
        """How long to wait for readers, in seconds."""
        if self._interval is None or len(self.sent_times) == self._num_steps:
            return 1.0
        return max(self._started + len(self.sent_times) * self._interval - now, 0.0)

    def step(self) -> StepOutput:
        number = len(self.sent_times)
        is_last = number == self._num_steps - 1
        outputs = [
            RequestOutput(
                request_id=stream.request_id,
                new_token_ids=stream.outputs[number],
                finish_reason="length" if is_last else None,
                draft_kind="suffix" if len(stream.outputs[number]) > 1 else None,
                num_draft_tokens=len(stream.outputs[number]) - 1,
                num_accepted_tokens=len(stream.outputs[number]) - 1,
                queue_seconds=None if number else 0.0,
                num_cached_tokens=None if number else 0,
            )
            for stream in self.streams
        ]
        stats = StepStats(
            phase="decode",
            step_seconds=0.01,
            num_rows=len(outputs),
            num_tokens=len(outputs),
            num_running=0 if is_last else len(outputs),
            num_waiting=0,
            kv_cache_usage_ratio=0.5,
        )
        return StepOutput(outputs=outputs, stats=stats)

    def arrived(self, stream: Stream, now: float) -> None:
        """Note which steps the reader has now."""
        # A step that ends inside a character adds no text.
        num_steps = min(bisect_right(stream.ends, stream.num_chars), len(self.sent_times))
        for number in range(stream.num_steps, num_steps):
            if number >= self._num_warm:
                self._delays += [now - self.sent_times[number]] * len(stream.outputs[number])
            self._num_waiting[number] -= 1
        self.num_done += stream.num_steps < num_steps == self._num_steps
        stream.num_steps = num_steps
        before = self._num_arrived
        while self._num_arrived < self._num_steps and not self._num_waiting[self._num_arrived]:
            self._num_arrived += 1
        if before < self._num_warm <= self._num_arrived or self._num_arrived == self._num_steps:
            self._marks.append((now, _processor_seconds(os.getppid())))

    def measurement(self) -> Measurement:
        (start, used_before), (end, used) = self._marks[0], self._marks[-1]
        return Measurement(
            num_tokens=len(self._delays),
            seconds=end - start,
            server_seconds=used - used_before,
            chunks_per_step=statistics.mean(s.num_chunks / self._num_steps for s in self.streams),
            delays=self._delays,
        )


def _text_ends(tokenizer: Tokenizer, outputs: Sequence[Sequence[int]]) -> list[int]:
    """The characters that are certain after each step."""
    lengths = [sum(len(tokenizer.token_bytes(each)) for each in step) for step in outputs]
    text = b"".join(tokenizer.token_bytes(each) for step in outputs for each in step)
    return [len(text[:end].decode(errors="ignore")) for end in accumulate(lengths)]


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ready(tokenizer: Tokenizer, num_streams: int) -> EngineReady:
    return EngineReady(
        vocab_size=tokenizer.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=num_streams,
        num_speculative_tokens=15,
        speculative_method="suffix",
        device="cpu",
        dtype="bfloat16",
        eos_token_ids=[],
        load_seconds=0.0,
    )


def serve_load(options: argparse.Namespace) -> None:
    """As `tandem serve`, with the load in place of the engine."""
    os.sched_setaffinity(0, {options.cores[0]})
    settings = Settings(max_num_seqs=options.streams, log_level="warning", max_engine_crashes=0)
    configure_logging(settings.log_level, settings.log_format)
    model_path = resolve_model(settings.model, settings.cache_dir)
    listener = bind_socket(settings.host, 0)
    # The load may be ready before the HTTP side is.
    listener.listen(options.streams)
    arguments = [*sys.argv[1:], "--model-path", str(model_path)]
    arguments += ["--port", str(listener.getsockname()[1])]
    uvloop.run(
        serve(
            settings,
            settings.engine_config(model_path, None),
            TokenizerConfig.from_folder(model_path),
            listener,
            on_ready=lambda _: None,
            engine_command=(sys.executable, __file__, *arguments, "--role", "load"),
        )
    )


def load(options: argparse.Namespace) -> None:
    os.sched_setaffinity(0, {options.cores[1]})
    with zmq.Context() as context, context.socket(zmq.DEALER) as engine:
        engine.connect(f"ipc://{options.folder}/engine.sock")
        try:
            for line in Load(engine, options).run():
                print(line, flush=True)
        finally:
            os.kill(os.getppid(), signal.SIGTERM)


def launch(options: argparse.Namespace) -> int:
    cores = map(str, options.cores)
    command = [sys.executable, __file__, *sys.argv[1:], "--cores", *cores, "--role", "serve"]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rate", type=float, default=20_000, help="tokens/s of the steady load")
    parser.add_argument("--seconds", type=float, default=6, help="about so long for each row")
    parser.add_argument("--chat", action="store_true")
    cores = sorted(os.sched_getaffinity(0))[:2]
    parser.add_argument("--cores", type=int, nargs=2, default=cores, help="server's, load's")
    # How this file starts itself.
    parser.add_argument("--model-path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", default="launch", help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    roles = {"launch": launch, "serve": serve_load, "load": load}
    return roles[options.role](options) or 0


if __name__ == "__main__":
    sys.exit(main())
