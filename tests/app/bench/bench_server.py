"""A server on the loopback interface that says what it is told to say, as Tandem would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Say = Callable[[Body], Iterator[object]]
MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()
DONE = "[DONE]"


def chunk(text: str, num_tokens: int) -> Body:
    """With the number of tokens so far."""
    return {"choices": [{"text": text}], "usage": _usage(num_tokens)}


def end(num_tokens: int, *, drafted: int = 0) -> Body:
    """Of an answer that had one draft, accepted to the last token, or none."""
    speculation = {
        "num_spec_steps": int(drafted > 0),
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": drafted,
        "acceptance_histogram": [0] * drafted + [1] if drafted else [],
    }
    metrics = {"speculative_decoding": speculation}
    return {"choices": [], "usage": _usage(num_tokens), "metrics": metrics}


def _usage(num_tokens: int) -> Body:
    return {"completion_tokens": num_tokens, "prompt_tokens_details": {"cached_tokens": 0}}


def says(text: str) -> Say:
    """Word by word without speculation, else at once."""

    def say(body: Body) -> Iterator[object]:
        words = text.split(" ")
        if body["speculative"]:
            yield chunk(text, len(words))
            yield end(len(words), drafted=len(words) - 1)
        else:
            for index, word in enumerate(words):
                yield chunk(f" {word}" if index else word, index + 1)
            yield end(len(words))
        yield DONE

    return say


class BenchServer(ThreadingHTTPServer):
    """Remembers what it was asked. `refusal` is a status and a body in place of all answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say = says("a b c d")
        self.models = MODELS
        self.refusal: tuple[int, bytes] | None = None
        self.bodies: list[Body] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def measured(self) -> list[Body]:
        """Without the warm-up."""
        return [body for body in self.bodies if not body["prompt"].startswith("The quick")]

    def handle_error(self, *_: object) -> None:
        """A benchmark that ends leaves its streams."""


class _Handler(BaseHTTPRequestHandler):
    server: BenchServer

    def do_GET(self) -> None:
        self._note()
        self._answer(*(self.server.refusal or (200, self.server.models)))

    def do_POST(self) -> None:
        self._note()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.asked.set()
        self.send_response(200)
        self.end_headers()
        for event in self.server.say(body):
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {data}\n\n".encode())

    def _note(self) -> None:
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers["Authorization"])

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
