"""The operator for event loops: the same calls, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.async_producer import AsyncTaskProducer
from interlock.awaiting import Awaited, Streamed
from interlock.client import Client, ClientOptions
from interlock.keyring import Keys
from interlock.operator import Operator
from interlock.threads import CallThreads, run_in

if TYPE_CHECKING:
    from typing_extensions import Unpack

CALLS = 16
"""Calls of one operator at a time; further ones queue."""


class AsyncKeys:
    """Keys, awaited: `AsyncOperator.keys`."""

    def __init__(self, keys: Keys, threads: CallThreads) -> None:
        self._sync = keys
        self._threads = threads

    create = Awaited(Keys.create)
    list = Streamed(Keys.list)
    revoke = Awaited(Keys.revoke)
    rotate = Awaited(Keys.rotate)


class AsyncOperator:
    """Operator for asyncio: the same arguments, calls and errors; lists are for `async for`. May be used by several loops.

    `tasks` is an AsyncTaskProducer with the operator's key, `keys` the keys of the project. A call that is cancelled while it
    is on its way may still be carried out.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._sync = Operator(url, key, **options)
        self._threads = CallThreads(CALLS)
        self.tasks = AsyncTaskProducer(client=self._sync.client)
        self.keys = AsyncKeys(self._sync.keys, self._threads)

    @property
    def client(self) -> Client:
        """The client below."""
        return self._sync.client

    def __repr__(self) -> str:
        return f"AsyncOperator(url={self.client.url!r})"

    async def __aenter__(self) -> AsyncOperator:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await run_in(self._threads, self._sync.close)

    resolve = Awaited(Operator.resolve)
    bulk = Awaited(Operator.bulk)
    pause_type = Awaited(Operator.pause_type)
    resume_type = Awaited(Operator.resume_type)
    pause_project = Awaited(Operator.pause_project)
    resume_project = Awaited(Operator.resume_project)
    task_types = Streamed(Operator.task_types)
    task_type = Awaited(Operator.task_type)
    workers = Streamed(Operator.workers)
    worker = Awaited(Operator.worker)
    drain_worker = Awaited(Operator.drain_worker)
    remove_worker = Awaited(Operator.remove_worker)
    limits = Awaited(Operator.limits)
    set_limit = Awaited(Operator.set_limit)
    drop_limit = Awaited(Operator.drop_limit)
    set_rate = Awaited(Operator.set_rate)
    audit = Streamed(Operator.audit)
    doctor = Awaited(Operator.doctor)
