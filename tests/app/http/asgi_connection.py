"""A client at the ASGI seam: it sends its body in pieces, and goes away when it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class AsgiConnection:
    """`gone` makes it leave; `got_body` is set when the first part of the answer was sent."""

    def __init__(
        self,
        pieces: list[bytes],
        *,
        complete: bool = True,
        seconds_between: float = 0,
        headers: list[tuple[bytes, bytes]] | None = None,
        method: str = "POST",
        path: str = "/v1/completions",
    ) -> None:
        self._pieces = list(pieces)
        self._complete = complete
        self._seconds_between = seconds_between
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json"), *(headers or [])],
            "server": ("tandem", 80),
        }
        self.num_received = 0
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.gone = asyncio.Event()
        self.got_body = asyncio.Event()

    @classmethod
    def of(cls, body: object, **options: Any) -> AsgiConnection:
        return cls([json.dumps(body).encode()], **options)

    async def run(self, app: Any) -> None:
        await app(self._scope, self.receive, self.send)

    def start(self, app: Any) -> asyncio.Task[None]:
        return asyncio.create_task(self.run(app))

    async def receive(self) -> dict[str, Any]:
        self.num_received += 1
        if self._pieces:
            await asyncio.sleep(self._seconds_between)
            piece = self._pieces.pop(0)
            more_body = bool(self._pieces) or not self._complete
            return {"type": "http.request", "body": piece, "more_body": more_body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = ((name.decode(), value.decode()) for name, value in message["headers"])
            self.headers = dict(pairs)
        elif message["body"]:
            self.body += message["body"]
            self.got_body.set()

    def json(self) -> Any:
        return json.loads(self.body)
