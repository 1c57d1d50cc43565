"""Where texts are tokenised: off the event loop, in few threads. A long text waits for the long
ones only, so that it does not hold up the short ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_SHORT_CHARS = 32_768
NUM_SHORT_THREADS = 3

Result = TypeVar("Result")


class TokenizerThreads:
    """Two queues; a caller that goes away before its turn leaves its queue."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(NUM_SHORT_THREADS, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer-long")

    async def run(self, function: Callable[[], Result], *, num_chars: int) -> Result:
        """What `function`, which reads so many characters, returns."""
        executor = self._short if num_chars <= MAX_SHORT_CHARS else self._long
        return await asyncio.get_running_loop().run_in_executor(executor, function)
