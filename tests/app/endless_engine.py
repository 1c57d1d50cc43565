"""An engine that goes on for ever, as fast as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fake_engine import FakeEngineClient

from app.dispatch.output_stream import OutputStream
from engine.messages import AddRequest, RequestOutput

NUM_TOKENS_PER_LOOK = 200


class EndlessStream(OutputStream):
    def __init__(self, request_id: str, client: EndlessEngineClient) -> None:
        super().__init__([request_id], client.abort)
        self._request_id = request_id

    async def get(self, timeout: float | None = None) -> list[RequestOutput]:
        await asyncio.sleep(0)
        token_ids = [70] * NUM_TOKENS_PER_LOOK
        self.put(RequestOutput(request_id=self._request_id, new_token_ids=token_ids))
        return await super().get(timeout)


class EndlessEngineClient(FakeEngineClient):
    """`was_aborted` is set when a request was."""

    def __init__(self, *, vocab_size: int) -> None:
        super().__init__(lambda _: [], vocab_size=vocab_size)
        self.was_aborted = asyncio.Event()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.was_aborted.set()

    def generate(self, requests: Sequence[AddRequest], *, tenant: str = "") -> OutputStream:
        self.tenants.append(tenant)
        self.requests += requests
        self.asked.set()
        return EndlessStream(requests[0].request_id, self)
