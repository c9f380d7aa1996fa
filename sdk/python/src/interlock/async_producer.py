"""The producer for event loops: the same calls, awaited. Each is the sync producer's own, made in a thread.

A wait decides as the sync one does (`waiting.Wait`), but only a bounded number of waits hold a request (and a thread) at a
time; the others poll, so that a thousand waits neither stop submissions nor need a thousand threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from interlock.client import Client
from interlock.contract import TaskContract
from interlock.errors import ApiError, Unreachable
from interlock.producer import TaskHandle, TaskProducer, take_output, take_result
from interlock.reading import TaskFilter
from interlock.recorded import SentSignal, TaskChild, TaskStep
from interlock.submission import Submission, SubmitOptions
from interlock.tasks import JournalEvent, Task
from interlock.threads import CallThreads
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


class AsyncTaskProducer:
    """TaskProducer for asyncio: the same arguments, calls and errors. May be used by several loops.

    A call that is cancelled while it is on its way may still be carried out; repeating it under the same
    `idempotency_key` is safe.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        profile: str | None = None,
        timeout: float = 60.0,
        ca: str | PathLike[str] | None = None,
        client: Client | None = None,
    ) -> None:
        self._producer = TaskProducer(url, key, profile=profile, timeout=timeout, ca=ca, client=client)
        self._threads = CallThreads(CALLS)
        self._held = 0
        self._polling = 0

    @property
    def client(self) -> Client:
        """The client below."""
        return self._producer.client

    def __repr__(self) -> str:
        return f"AsyncTaskProducer(url={self.client.url!r})"

    async def __aenter__(self) -> AsyncTaskProducer:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._run(self._producer.close)

    @overload
    async def submit(self, type: TaskContract[In, Out], input: In, **options: Unpack[SubmitOptions]) -> AsyncTaskHandle[Out]: ...
    @overload
    async def submit(
        self, type: str, schema_version: int = 1, input: Any = None, **options: Unpack[SubmitOptions]
    ) -> AsyncTaskHandle: ...
    async def submit(self, type: str | TaskContract[Any, Any], *given: Any, **options: Any) -> AsyncTaskHandle[Any]:
        """As TaskProducer.submit."""
        submit: Callable[..., TaskHandle[Any]] = self._producer.submit
        return self._own(await self._run(lambda: submit(type, *given, **options)))

    async def submit_many(self, submissions: Iterable[Submission | Mapping[str, Any]]) -> list[AsyncTaskHandle]:
        """As TaskProducer.submit_many."""
        given = list(submissions)
        return [self._own(handle) for handle in await self._run(lambda: self._producer.submit_many(given))]

    async def get(self, task_id: str, *, include: Sequence[str] = ()) -> Task:
        """As TaskProducer.get."""
        return await self._run(lambda: self._producer.get(task_id, include=include))

    async def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it is settled or `outcome-unknown`. Raises TimeoutError when only the time was over."""
        wait = Wait(task_id, timeout)
        while True:
            may_hold = self._held < HELD
            self._held += may_hold
            self._polling += not may_hold
            try:
                held, left = wait.held() if may_hold else wait.held(0.0), wait.left()
                task = await self._run(partial(self._producer.look, task_id, held, left))
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

    async def cancel(self, task_id: str, reason: str | None = None) -> Task:
        """As TaskProducer.cancel."""
        return await self._run(lambda: self._producer.cancel(task_id, reason))

    async def signal(self, task_id: str, name: str, payload: Any = None, *, signal_key: str | None = None) -> SentSignal:
        """As TaskProducer.signal."""
        return await self._run(lambda: self._producer.signal(task_id, name, payload, signal_key=signal_key))

    def steps(self, task_id: str, *, page_size: int = 50) -> AsyncIterator[TaskStep]:
        """As TaskProducer.steps."""
        return self._each(self._producer.steps(task_id, page_size=page_size), page_size)

    def children(self, task_id: str, *, page_size: int = 50) -> AsyncIterator[TaskChild]:
        """As TaskProducer.children."""
        return self._each(self._producer.children(task_id, page_size=page_size), page_size)

    async def rerun(
        self,
        task_id: str,
        *,
        from_step: str | None = None,
        input: Any = ...,
        keep_effect_keys: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncTaskHandle:
        """As TaskProducer.rerun."""
        rerun = self._producer.rerun
        options: dict[str, Any] = {
            "from_step": from_step, "input": input, "keep_effect_keys": keep_effect_keys, "idempotency_key": idempotency_key,
        }  # fmt: skip
        return self._own(await self._run(lambda: rerun(task_id, **options)))

    def list(self, *, limit: int | None = None, page_size: int = 50, **filter: Unpack[TaskFilter]) -> AsyncIterator[Task]:
        """As TaskProducer.list; pages are fetched as the iterator moves on."""
        return self._each(self._producer.list(limit=limit, page_size=page_size, **filter), page_size)

    def journal(self, task_id: str, *, after: int = 0, page_size: int = 200) -> AsyncIterator[JournalEvent]:
        """As TaskProducer.journal."""
        return self._each(self._producer.journal(task_id, after=after, page_size=page_size), page_size)

    def watch(self, task_id: str, *, after: int = 0) -> AsyncWatch:
        """As TaskProducer.watch."""
        return AsyncWatch(self._producer.watch(task_id, after=after))

    async def _run(self, call: Callable[[], Item]) -> Item:
        return await asyncio.wrap_future(self._threads.submit(call))

    async def _each(self, items: Iterator[Item], page_size: int) -> AsyncIterator[Item]:
        while chunk := await self._run(lambda: [*islice(items, page_size)]):
            for item in chunk:
                yield item
            if len(chunk) < page_size:
                return

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
