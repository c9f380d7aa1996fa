"""The producer for event loops: the same calls, awaited. Each is the sync producer's own, made in a thread.

A wait decides as the sync one does (`waiting.Wait`), but only a bounded number of waits hold a request (and a thread) at a
time; the others poll, so that a thousand waits neither stop submissions nor need a thousand threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from interlock.awaiting import Awaited, Streamed
from interlock.client import Client, ClientOptions
from interlock.contract import TaskContract
from interlock.errors import ApiError, Unreachable
from interlock.producer import TaskHandle, TaskProducer, take_output, take_result
from interlock.schedules import Schedules
from interlock.submission import RerunOptions, Submission, SubmitOptions
from interlock.tasks import JournalEvent, Task
from interlock.threads import CallThreads, run_in
from interlock.waiting import Wait
from interlock.watching import Watch

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Unpack

    Out = typing_extensions.TypeVar("Out", default=Any)
else:
    Out = TypeVar("Out")

In = TypeVar("In")
Item = TypeVar("Item")

CALLS = 32
"""Calls of one producer at a time; further ones queue."""

HELD = 16
"""Waits of one producer that hold a request at a time."""

POLLS = 50.0
"""Looks a second of all the other waits together, however many there are."""


class AsyncTaskHandle(Generic[Out]):
    """A submitted task. `task` is the task as the service answered the submission; the other calls ask again."""

    def __init__(self, producer: AsyncTaskProducer, task: Task, contract: TaskContract[Any, Out] | None = None) -> None:
        self._producer = producer
        self.contract = contract
        self.task = task

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def deduplicated(self) -> bool:
        """Whether an earlier submission with the same key had made the task."""
        return self.task.deduplicated

    def __repr__(self) -> str:
        return f"AsyncTaskHandle(id={self.id!r}, type={self.task.type!r})"

    async def get(self) -> Task:
        """The task as it is now."""
        return await self._producer.get(self.id)

    async def wait(self, timeout: float | None = None) -> Task:
        """As AsyncTaskProducer.wait."""
        return await self._producer.wait(self.id, timeout)

    async def result(self, timeout: float | None = None) -> Out:
        """As TaskHandle.result."""
        return take_output(await self.wait(timeout), self.contract)

    async def cancel(self, reason: str | None = None) -> Task:
        """As TaskProducer.cancel."""
        return await self._producer.cancel(self.id, reason)

    def journal(self, after: int = 0) -> AsyncIterator[JournalEvent]:
        """As TaskProducer.journal."""
        return self._producer.journal(self.id, after=after)

    def watch(self, after: int = 0) -> AsyncWatch:
        """As TaskProducer.watch."""
        return self._producer.watch(self.id, after=after)


class AsyncSchedules:
    """Schedules, awaited: `AsyncTaskProducer.schedules`."""

    def __init__(self, schedules: Schedules, threads: CallThreads) -> None:
        self._sync = schedules
        self._threads = threads

    put = Awaited(Schedules.put)
    get = Awaited(Schedules.get)
    list = Streamed(Schedules.list)
    delete = Awaited(Schedules.delete)
    pause = Awaited(Schedules.pause)
    resume = Awaited(Schedules.resume)
    trigger = Awaited(Schedules.trigger)


class AsyncTaskProducer:
    """TaskProducer for asyncio: the same arguments, calls and errors. May be used by several loops.

    A call that is cancelled while it is on its way may still be carried out; repeating it under the same
    `idempotency_key` is safe.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._sync = TaskProducer(url, key, **options)
        self._threads = CallThreads(CALLS)
        self.schedules = AsyncSchedules(self._sync.schedules, self._threads)
        self._held = 0
        self._polling = 0

    @property
    def client(self) -> Client:
        """The client below."""
        return self._sync.client

    def __repr__(self) -> str:
        return f"AsyncTaskProducer(url={self.client.url!r})"

    async def __aenter__(self) -> AsyncTaskProducer:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._run(self._sync.close)

    @overload
    async def submit(self, type: TaskContract[In, Out], input: In, **options: Unpack[SubmitOptions]) -> AsyncTaskHandle[Out]: ...
    @overload
    async def submit(
        self, type: str, schema_version: int = 1, input: Any = None, **options: Unpack[SubmitOptions]
    ) -> AsyncTaskHandle: ...
    async def submit(self, type: str | TaskContract[Any, Any], *given: Any, **options: Any) -> AsyncTaskHandle[Any]:
        """As TaskProducer.submit."""
        submit: Callable[..., TaskHandle[Any]] = self._sync.submit
        return self._own(await self._run(lambda: submit(type, *given, **options)))

    async def submit_many(self, submissions: Iterable[Submission | Mapping[str, Any]]) -> list[AsyncTaskHandle]:
        """As TaskProducer.submit_many."""
        given = list(submissions)
        return [self._own(handle) for handle in await self._run(lambda: self._sync.submit_many(given))]

    get = Awaited(TaskProducer.get)

    async def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it is settled or `outcome-unknown`. Raises TimeoutError when only the time was over."""
        wait = Wait(task_id, timeout)
        while True:
            may_hold = self._held < HELD
            self._held += may_hold
            self._polling += not may_hold
            try:
                held, left = wait.held() if may_hold else wait.held(0.0), wait.left()
                task = await self._run(partial(self._sync.look, task_id, held, left))
                if wait.take(task):
                    return task
                if not may_hold:
                    await asyncio.sleep(max(0.0, min(self._polling / POLLS, wait.left())))
            except (ApiError, Unreachable) as error:
                wait.miss(error)
            finally:
                self._held -= may_hold
                self._polling -= not may_hold
            await asyncio.sleep(wait.pause())

    async def result(self, task_id: str, timeout: float | None = None) -> Any:
        """As TaskProducer.result."""
        return take_result(await self.wait(task_id, timeout))

    cancel = Awaited(TaskProducer.cancel)
    signal = Awaited(TaskProducer.signal)
    steps = Streamed(TaskProducer.steps)
    children = Streamed(TaskProducer.children)

    async def rerun(self, task_id: str, **options: Unpack[RerunOptions]) -> AsyncTaskHandle:
        """As TaskProducer.rerun."""
        return self._own(await self._run(lambda: self._sync.rerun(task_id, **options)))

    list = Streamed(TaskProducer.list)
    journal = Streamed(TaskProducer.journal)

    def watch(self, task_id: str, *, after: int = 0) -> AsyncWatch:
        """As TaskProducer.watch."""
        return AsyncWatch(self._sync.watch(task_id, after=after))

    async def _run(self, call: Callable[[], Item]) -> Item:
        return await run_in(self._threads, call)

    def _own(self, handle: TaskHandle[Out]) -> AsyncTaskHandle[Out]:
        return AsyncTaskHandle(self, handle.task, handle.contract)


class AsyncWatch:
    """Watch, for `async for`; who leaves it early closes it (`async with`).

    An event whose await was cancelled is not lost: the next await gets it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._threads = CallThreads(1)  # of its own: it waits for hours, and must not keep calls waiting
        self._next: Future[JournalEvent | None] | None = None

    def __repr__(self) -> str:
        return f"Async{self._watch!r}"

    @property
    def after(self) -> int:
        """The last event told."""
        return self._watch.after

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> JournalEvent:
        pending = self._next
        if pending is None or pending.cancelled():
            pending = self._next = self._threads.submit(lambda: next(self._watch, None))
        try:
            event = await asyncio.wrap_future(pending)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._next = None
            raise
        self._next = None
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncWatch:  # noqa: PYI034
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._watch.close()
