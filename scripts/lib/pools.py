"""Execution environments by the function: as many emulators as calls are in flight, up to a bound, as Lambda does it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from built import Built
from emulator import Emulator, EmulatorDied

log = logging.getLogger("interlock.lambda")


class Pool:
    """The environments of one function. `invoke` takes an idle one, or makes one, or waits for one."""

    def __init__(self, built: Built, logical_id: str, database_url: str, settings: Mapping[str, str], size: int) -> None:
        self.logical_id = logical_id
        self._built = built
        self._database_url = database_url
        self._settings = dict(settings)
        self._free = asyncio.Semaphore(size)
        self._idle: list[Emulator] = []
        self.environments: list[Emulator] = []

    async def invoke(self, event: Mapping[str, Any], threads: ThreadPoolExecutor) -> Any:
        """What the function returned, or Lambda's errorType object; the latter too where its environment died.

        A call that was given up on (its caller is cancelled) goes on in its environment, which takes no other meanwhile.
        """
        await self._free.acquire()
        # The one used last first, so that no more stay warm than are needed.
        environment = self._idle.pop() if self._idle else self._open()
        call = asyncio.get_running_loop().run_in_executor(threads, _invoke, environment, event)
        call.add_done_callback(lambda _: self._give_back(environment))
        return await asyncio.shield(call)

    def _open(self) -> Emulator:
        environment = self._built.open(self.logical_id, self._database_url, self._settings)
        self.environments.append(environment)
        return environment

    def _give_back(self, environment: Emulator) -> None:
        self._idle.append(environment)
        self._free.release()


def _invoke(environment: Emulator, event: Mapping[str, Any]) -> Any:
    try:
        return environment.invoke(event)
    except EmulatorDied as death:  # the next event starts a new one
        log.warning("%s", death)
        return {"errorType": "Runtime.ExitError", "errorMessage": "the execution environment ended"}


class Pools:
    """A pool for every function of a build; all environments end with the block."""

    def __init__(self, built: Built, database_url: str, settings: Mapping[str, str], size: int) -> None:
        self._built = built
        self._making = (database_url, settings, size)
        self._pools: dict[str, Pool] = {}
        # Far more than are ever in flight on one machine: a call that waits for its environment holds no thread.
        self._threads = ThreadPoolExecutor(max_workers=128)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        environments = [environment for pool in self._pools.values() for environment in pool.environments]
        # Killed and not asked: `stop` would wait for an event that an environment still holds.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(asyncio.to_thread(environment.abandon) for environment in environments))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def invoke(self, logical_id: str, event: Mapping[str, Any]) -> Any:
        """One event for one function."""
        if logical_id not in self._pools:
            self._pools[logical_id] = Pool(self._built, logical_id, *self._making)
        return await self._pools[logical_id].invoke(event, self._threads)
