"""The producer's side: submit work, look at it, wait for its end.

TaskProducer.submit → TaskHandle.result; `waiting` says how a wait asks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from interlock.client import ClientOptions, open_client
from interlock.contract import TaskContract, make_submission
from interlock.errors import ApiError, OutcomeUnknown, TaskCancelled, TaskFailed, Unreachable
from interlock.reading import TaskFilter, fill, filter_to_wire, read_pages, task_path
from interlock.recorded import SentSignal, TaskChild, TaskStep
from interlock.schedules import Schedules
from interlock.submission import RerunOptions, Submission, SubmitOptions, make_key, make_rerun, pack
from interlock.tasks import JournalEvent, Task
from interlock.waiting import StreamHost, Wait
from interlock.watching import Watch

__all__ = ["TaskHandle", "TaskProducer", "task_path"]

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Unpack

    Out = typing_extensions.TypeVar("Out", default=Any)
else:
    Out = TypeVar("Out")  # whose default only type checkers of every version know

In = TypeVar("In")

log = logging.getLogger("interlock")

_never_registered_told: set[tuple[str, int]] = set()


class TaskHandle(Generic[Out]):
    """A submitted task. `task` is the task as the service answered the submission; the other calls ask again.

    `contract`, if it was submitted by one, gives the result its type.
    """

    def __init__(self, producer: TaskProducer, task: Task, contract: TaskContract[Any, Out] | None = None) -> None:
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
        return f"TaskHandle(id={self.id!r}, type={self.task.type!r})"

    def get(self) -> Task:
        """The task as it is now."""
        return self._producer.get(self.id)

    def wait(self, timeout: float | None = None) -> Task:
        """As TaskProducer.wait."""
        return self._producer.wait(self.id, timeout)

    def result(self, timeout: float | None = None) -> Out:
        """The task's result, of the contract's type. Raises TaskFailed, TaskCancelled, OutcomeUnknown (each with
        `.task`), TimeoutError, or NotValid for a result that the contract refuses.
        """
        return take_output(self.wait(timeout), self.contract)

    def cancel(self, reason: str | None = None) -> Task:
        """As TaskProducer.cancel."""
        return self._producer.cancel(self.id, reason)

    def journal(self, after: int = 0) -> Iterator[JournalEvent]:
        """As TaskProducer.journal."""
        return self._producer.journal(self.id, after=after)

    def watch(self, after: int = 0) -> Watch:
        """As TaskProducer.watch."""
        return self._producer.watch(self.id, after=after)


class TaskProducer:
    """Submits tasks and reads them; `schedules` submit by themselves. Thread-safe; safe after fork.

    URL and key (of kind `task-producer`) come from the arguments, else from `INTERLOCK_URL` and
    `INTERLOCK_PRODUCER_KEY`, else from the profile. the other options are those of ClientOptions. Every
    call raises ApiError when the service refuses and Unreachable when no answer came in time.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self.client = open_client("task-producer", url, key, **options)
        self._host = StreamHost(self.client)
        self.schedules = Schedules(self.client)

    def __repr__(self) -> str:
        return f"TaskProducer(url={self.client.url!r})"

    def __enter__(self) -> TaskProducer:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    @overload
    def submit(self, type: TaskContract[In, Out], input: In, **options: Unpack[SubmitOptions]) -> TaskHandle[Out]: ...
    @overload
    def submit(self, type: str, schema_version: int = 1, input: Any = None, **options: Unpack[SubmitOptions]) -> TaskHandle: ...
    def submit(self, type: str | TaskContract[Any, Any], *given: Any, **options: Any) -> TaskHandle[Any]:
        """Store one task: `submit(type, schema_version, input, …)` or `submit(contract, input, …)`.

        The options are those of SubmitOptions. The same `idempotency_key` with the same request answers the task that it
        made first (`deduplicated`). Raises NotJson for an input that JSON cannot carry, NotValid for one that the contract
        refuses, ApiError with `IDEMPOTENCY_CONFLICT` for a key that named another request.
        """
        submission = make_submission(type, *given, **options)
        view = self.client.request("POST", "/v1/tasks", content=submission.encode())
        task = Task.read(view)
        tell_warnings(task)
        return TaskHandle(self, task, submission.contract)

    def submit_many(self, submissions: Iterable[Submission | Mapping[str, Any]]) -> list[TaskHandle]:
        """Store many tasks, in requests of at most 1,000 tasks and 5 MiB; each request is stored whole or not at all.

        The handles are in the order of the submissions; their `task` holds only what was submitted and the id. A
        submission is a `Submission` or a mapping of its fields.
        """
        given = [item if isinstance(item, Submission) else Submission(**item) for item in submissions]
        handles: list[TaskHandle] = []
        for _, body in pack(given):
            answer = self.client.request("POST", "/v1/tasks/batch", content=body)
            for item in answer["items"]:
                source = given[len(handles)]
                view = {
                    "type": source.type,
                    "schemaVersion": source.schema_version,
                    "status": "queued",
                    "input": source.input,
                    "tags": source.tags,
                    "pool": source.pool,
                    **item,
                }
                handles.append(TaskHandle(self, Task.read(view), source.contract))
        return handles

    def get(self, task_id: str, *, include: Sequence[str] = ()) -> Task:
        """The task as it is now. `include` (`attempts`, `steps`, `children`) adds to its `raw`."""
        params = {"include": ",".join(include) or None}
        return Task.read(self.client.request("GET", task_path(task_id), params=params))

    def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it is settled or `outcome-unknown`: failed, cancelled and unknown are values, not errors.

        `timeout` is seconds; None waits for ever. Raises TimeoutError when only the time was over.
        """
        wait = Wait(task_id, timeout)
        while True:
            try:
                task = self.look(task_id, wait.held(), wait.left())
                if wait.take(task):
                    return task
            except (ApiError, Unreachable) as error:
                wait.miss(error)
            time.sleep(wait.pause())

    def look(self, task_id: str, seconds: float, patience: float) -> Task:
        """The task as it is now, or as soon as it ends within so many seconds, of a host that can hold the answer.

        `patience` bounds an outage, in seconds. One step of a wait; `wait` takes as many as it needs.
        """
        return self._host.look(task_id, seconds, patience)

    def result(self, task_id: str, timeout: float | None = None) -> Any:
        """The result of a task. Raises TaskFailed, TaskCancelled, OutcomeUnknown (each with `.task`), or TimeoutError."""
        return take_result(self.wait(task_id, timeout))

    def list(self, *, limit: int | None = None, page_size: int = 50, **filter: Unpack[TaskFilter]) -> Iterator[Task]:
        """Tasks, newest first, without input and result; pages are fetched as the iterator moves on.

        The filters are those of TaskFilter; `limit` ends the iterator after so many tasks. Raises ValueError for a name that
        is no filter.
        """
        pages = read_pages(self.client, "/v1/tasks", filter_to_wire(filter), page_size)
        return (Task.read(view) for view in (pages if limit is None else islice(pages, limit)))

    def journal(self, task_id: str, *, after: int = 0, page_size: int = 200) -> Iterator[JournalEvent]:
        """The task's events in order, those behind `after` only; pages are fetched as the iterator moves on."""
        while True:
            params = {"after": after, "limit": page_size}
            answer = self.client.request("GET", f"{task_path(task_id)}/journal", params=params)
            events = [JournalEvent.read(item) for item in answer["items"]]
            yield from events
            if not events or not answer.get("nextCursor"):
                return
            after = events[-1].seq

    def watch(self, task_id: str, *, after: int = 0) -> Watch:
        """The task's events behind `after` as they happen, until it is settled or `outcome-unknown`; see Watch."""
        return Watch(self.client, self._host, task_id, after)

    def cancel(self, task_id: str, reason: str | None = None) -> Task:
        """Ask for the task's end: at once while it is queued; a running one is told to stop (`cancel_requested`).

        Raises ApiError with `TASK_FINISHED` or `OUTCOME_UNKNOWN` where there is nothing left to cancel.
        """
        body = {} if reason is None else {"reason": reason}
        return Task.read(self.client.request("POST", f"{task_path(task_id)}/cancel", json=body))

    def signal(self, task_id: str, name: str, payload: Any = None, *, signal_key: str | None = None) -> SentSignal:
        """Send the task a signal, for the wait that takes it (`ctx.wait_for_signal`); one that comes early is kept.

        `signal_key` names the fact: the same key is one signal, however often it is sent (absent: a key of this call's own).
        Raises ApiError with `TASK_FINISHED`, or `IDEMPOTENCY_CONFLICT` for a key that named another signal.
        """
        key = make_key() if signal_key is None else signal_key
        body = {"name": name, "payload": payload, "signalKey": key}
        return fill(SentSignal, self.client.request("POST", f"{task_path(task_id)}/signals", json=body))

    def steps(self, task_id: str, *, page_size: int = 50) -> Iterator[TaskStep]:
        """The task's steps, finished waits and children, in order, with their outputs; pages are fetched as it moves on."""
        return (fill(TaskStep, item) for item in read_pages(self.client, f"{task_path(task_id)}/steps", page_size=page_size))

    def children(self, task_id: str, *, page_size: int = 50) -> Iterator[TaskChild]:
        """The task's children, and what became of them; pages are fetched as it moves on."""
        return (fill(TaskChild, item) for item in read_pages(self.client, f"{task_path(task_id)}/children", page_size=page_size))

    def rerun(self, task_id: str, **options: Unpack[RerunOptions]) -> TaskHandle:
        """Make a new task of a settled one: the same, or what the options (RerunOptions) make of it.

        Raises ApiError with `TASK_NOT_FINISHED` or `OUTCOME_UNKNOWN` for a task that is not settled, and with
        `INVALID_REQUEST` for a `from_step` that its journal does not know.
        """
        body = make_rerun(**options)
        return TaskHandle(self, Task.read(self.client.request("POST", f"{task_path(task_id)}/rerun", json=body)))


def take_result(task: Task) -> Any:
    """The result of an ended task, or the error that stands for its end."""
    if task.status == "succeeded":
        return task.result
    if task.status == "cancelled":
        raise TaskCancelled(task)
    if task.status == "outcome-unknown":
        raise OutcomeUnknown(task)
    raise TaskFailed(task)


def take_output(task: Task, contract: TaskContract[Any, Out] | None) -> Out:
    """As take_result, as the contract's type."""
    result = take_result(task)
    return cast("Out", result) if contract is None else contract.read_output(result)


def tell_warnings(task: Task) -> None:
    """Log what the service warned of, once per type."""
    for warning in task.warnings:
        kind = (task.type, task.schema_version)
        if kind not in _never_registered_told:
            _never_registered_told.add(kind)
            text = warning.get("message") or warning.get("detail") or warning.get("code")
            log.warning("%s@%s: %s", task.type, task.schema_version, text)
