"""Keeps an engine process running for the client: starts it, watches it, starts it again.

It knows when an engine is dead or hangs and whose doing that was; what becomes of the requests is
the client's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.dispatch.crash_history import CrashHistory
from app.dispatch.engine_client import ZmqEngineClient
from app.dispatch.engine_link import EngineLink
from app.dispatch.engine_process import EngineProcess
from app.errors import EngineFailedError
from app.metrics import Metrics
from engine.messages import EngineDead, EngineReady, StepOutput

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 0.5
ENGINE_STOP_SECONDS = 5.0
# A hang is so many looks in a row without a step: one look does not tell a process that was itself
# suspended from an engine that was.
NUM_HANG_LOOKS = 10


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """`is_crash`: it speaks against the engine. `running_ids` are who may have caused it."""

    reason: str
    is_crash: bool
    running_ids: Sequence[str] = ()


class EngineSupervisor:
    """Runs one engine process after the other."""

    def __init__(
        self,
        client: ZmqEngineClient,
        metrics: Metrics,
        create_process: Callable[[], EngineProcess],
        *,
        hang_seconds: float,
        max_crashes: int,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._create_process = create_process
        self._hang_seconds = hang_seconds
        self._crashes = CrashHistory(max_crashes)

    async def run(self) -> None:
        """Until cancelled, or until there were too many crashes.

        Raises EngineFailedError when the first engine dies before it is ready.
        """
        while True:
            death = await self._run_engine()
            if not self._client.was_ready:
                raise EngineFailedError(death.reason)
            if death.is_crash:
                self._crashes.add()
            if self._crashes.is_too_long:
                logger.critical("%s; this is one crash too many: giving up", death.reason)
                self._client.fail(f"it crashed too often; at last, {death.reason}")
                return
            delay = self._crashes.delay_seconds if death.is_crash else 0.0
            logger.error("%s; starting it again in %g s", death.reason, delay)
            await asyncio.sleep(delay)
            self._metrics.record_restart()

    async def _run_engine(self) -> EngineDeath:
        """One process from its start to its end."""
        process = self._create_process()
        try:
            with EngineLink(process.address) as link:
                try:
                    death = await self._watch(process, link)
                    is_explained = self._client.disconnect(death.running_ids)
                    return replace(death, is_crash=death.is_crash and not is_explained)
                finally:
                    await self._stop(process)
        finally:
            process.remove_folder()

    async def _stop(self, process: EngineProcess) -> None:
        # An engine that is still loading does not listen.
        grace_seconds = ENGINE_STOP_SECONDS if self._client.is_connected else 0.0
        self._client.shutdown()
        await process.stop(grace_seconds=grace_seconds)
        self._client.disconnect()

    async def _watch(self, process: EngineProcess, link: EngineLink) -> EngineDeath:
        self._metrics.record_engine(up=True, ready=False)
        await process.start()
        last_words = asyncio.create_task(self._listen(link))
        exit_code = asyncio.create_task(process.wait())
        hang = asyncio.create_task(self._hang())
        tasks = {last_words, exit_code, hang}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if hang.done():
                await process.kill()
            elif not exit_code.done() or exit_code.result() >= 0:
                # It may have said why, and that may not have been read yet, or it is about to end.
                await asyncio.wait({last_words, exit_code}, timeout=LAST_WORDS_SECONDS)
            if hang.done():
                reason = f"the engine process made no step for {self._hang_seconds:g} s"
            elif last_words.done():
                reason = last_words.result()
            else:
                reason = f"the engine process ended with code {exit_code.result()}"
            return self._death(process, reason)
        finally:
            for task in tasks:
                task.cancel()

    def _death(self, process: EngineProcess, reason: str) -> EngineDeath:
        """Nobody is blamed for a kill from outside; while it loads, the engine has no excuse."""
        if process.was_killed_from_outside:
            return EngineDeath(reason, is_crash=not self._client.is_connected)
        return EngineDeath(reason, is_crash=True, running_ids=process.running_request_ids())

    async def _listen(self, link: EngineLink) -> str:
        """Pass on what the engine says, until it says that it is dead, and why."""
        while True:
            match await link.receive():
                case EngineReady() as model:
                    self._client.connect(link, model)
                case StepOutput() as step:
                    self._client.hand_out(step)
                case EngineDead(message=message):
                    return message

    async def _hang(self) -> None:
        """Returns when the engine has owed a step for too long."""
        num_looks = num_steps = 0
        while num_looks < NUM_HANG_LOOKS:
            await asyncio.sleep(self._hang_seconds / NUM_HANG_LOOKS)
            is_silent = self._client.awaits_step and self._client.num_steps == num_steps
            num_looks = num_looks + 1 if is_silent else 0
            num_steps = self._client.num_steps
