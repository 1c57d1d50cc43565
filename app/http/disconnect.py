"""Giving up on work whose client has gone, for answers that are not streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from app.errors import ClientDisconnectedError

T = TypeVar("T")


async def until_disconnect(receive: Receive, awaitable: Awaitable[T]) -> T:
    """The awaitable's result; it is cancelled when the client disconnects first."""
    work = asyncio.ensure_future(awaitable)
    disconnect = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnectedError("The client disconnected.")
        return work.result()
    finally:
        work.cancel()
        disconnect.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
