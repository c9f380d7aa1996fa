"""The producer's side: submit work, look at it, wait for its end.

TaskProducer.submit → TaskHandle.result
wait: ask the host that can hold a long request; where none can, poll with growing intervals
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

from interlock.backoff import growing_delay, jittered
from interlock.client import Client
from interlock.errors import ApiError, OutcomeUnknown, TaskCancelled, TaskFailed, Unreachable
from interlock.retry import Retry
from interlock.settings import same_security
from interlock.submission import Submission, pack
from interlock.task import JournalEvent, Task, write_time

log = logging.getLogger("interlock")

LONGEST_HELD = 20.0
"""Seconds that one request may wait at the service."""

ASK_STREAM_AGAIN = 60.0
ASK_CONFIG_AGAIN = 600.0
"""Seconds after which a host that failed, or the service's configuration, is asked again."""

_never_registered_told: set[tuple[str, int]] = set()


class TaskHandle:
    """A submitted task. `task` is the task as the service answered the submission; the other calls ask again."""

    def __init__(self, producer: TaskProducer, task: Task) -> None:
        self._producer = producer
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

    def result(self, timeout: float | None = None) -> Any:
        """The task's result. Raises TaskFailed, TaskCancelled, OutcomeUnknown (each with `.task`), or TimeoutError."""
        return take_result(self.wait(timeout))

    def cancel(self, reason: str | None = None) -> Task:
        """As TaskProducer.cancel."""
        return self._producer.cancel(self.id, reason)

    def journal(self, after: int = 0) -> Iterator[JournalEvent]:
        """As TaskProducer.journal."""
        return self._producer.journal(self.id, after=after)


class TaskProducer:
    """Submits tasks and reads them. Thread-safe; safe after fork.

    URL and key (of kind `task-producer`) come from the arguments, else from `INTERLOCK_URL` and
    `INTERLOCK_PRODUCER_KEY`, else from the profile. `timeout` bounds one call, retries included, in seconds. Every
    call raises ApiError when the service refuses and Unreachable when no answer came in time.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        profile: str | None = None,
        timeout: float = 60.0,
        client: Client | None = None,
    ) -> None:
        self.client = client or Client(url, key, kind="task-producer", profile=profile, timeout=timeout)
        self._stream_host: tuple[str | None, float] = (None, 0.0)  # and until when that is believed

    def __repr__(self) -> str:
        return f"TaskProducer(url={self.client.url!r})"

    def __enter__(self) -> TaskProducer:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def submit(
        self,
        type: str,
        schema_version: int = 1,
        input: Any = None,
        *,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | str | None = None,
        priority: int | None = None,
        pool: str | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        lease: float | timedelta | None = None,
        start_deadline: float | timedelta | None = None,
        concurrency: tuple[str, int] | None = None,
        require_worker: Literal["registered", "online"] | None = None,
        trace: Mapping[str, str] | str | None = None,
    ) -> TaskHandle:
        """Store one task. The same key with the same request answers the task that it made first (`deduplicated`).

        `delay`, `timeout` (longest one attempt may run), `lease` and `start_deadline` are seconds or timedeltas.
        `concurrency` is (key, limit). `trace` is a traceparent or a mapping with it. Raises NotJson for an input that
        JSON cannot carry, ApiError with `IDEMPOTENCY_CONFLICT` for a key that named another request.
        """
        submission = Submission(
            type, schema_version, input, idempotency_key, tags, delay, run_at, priority, pool, retry, timeout, lease,
            start_deadline, concurrency, require_worker, trace,
        )  # fmt: skip
        view = self.client.request("POST", "/v1/tasks", content=submission.encode())
        task = Task.read(view)
        tell_warnings(task)
        return TaskHandle(self, task)

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
                handles.append(TaskHandle(self, Task.read(view)))
        return handles

    def get(self, task_id: str, *, include: Sequence[str] = ()) -> Task:
        """The task as it is now. `include` (`attempts`, `steps`, `children`) adds to its `raw`."""
        params = {"include": ",".join(include) or None}
        return Task.read(self.client.request("GET", task_path(task_id), params=params))

    def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it is settled or `outcome-unknown`: failed, cancelled and unknown are values, not errors.

        `timeout` is seconds; None waits for ever. Raises TimeoutError when only the time was over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        polls = 0
        status = "not yet seen"
        while True:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            asked = time.monotonic()
            try:
                held = max(0.0, min(left, LONGEST_HELD))
                # a held request takes its time, however short the bound of other calls is
                task = self._look(task_id, held, min(max(self.client.timeout, held + 5), left + 5))
                if task.ended:
                    return task
                status = task.status
            except Unreachable as error:  # An outage shorter than the caller's patience is not the caller's business.
                log.warning("waiting for task %s: %s", task_id, error)
                status = "out of reach"
            except ApiError as error:
                if not error.retryable:
                    raise
                log.warning("waiting for task %s: %s", task_id, error)
                status = f"not told ({error.code})"
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"task {task_id} is {status} after {timeout} s of waiting")
            if now - asked < 1.0:  # The host does not hold requests: poll.
                pause = jittered(growing_delay(polls, 0.05, 2.0, 1.5))
                polls += 1
                time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))

    def result(self, task_id: str, timeout: float | None = None) -> Any:
        """The result of a task. Raises TaskFailed, TaskCancelled, OutcomeUnknown (each with `.task`), or TimeoutError."""
        return take_result(self.wait(task_id, timeout))

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        schema_version: int | None = None,
        pool: str | None = None,
        tag: str | None = None,
        idempotency_key: str | None = None,
        parent_id: str | None = None,
        rerun_of: str | None = None,
        failure_code: str | None = None,
        schedule_owner: str | None = None,
        schedule_name: str | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        finished_after: datetime | str | None = None,
        finished_before: datetime | str | None = None,
        limit: int | None = None,
        page_size: int = 50,
    ) -> Iterator[Task]:
        """Tasks, newest first, without input and result; pages are fetched as the iterator moves on.

        `tag` is `key:value`; `limit` ends the iterator after so many tasks.
        """
        params: dict[str, Any] = {
            "status": [status] if isinstance(status, str) else list_of(status),
            "type": type,
            "schemaVersion": schema_version,
            "pool": pool,
            "tag": tag,
            "idempotencyKey": idempotency_key,
            "parentId": parent_id,
            "rerunOf": rerun_of,
            "failureCode": failure_code,
            "scheduleOwner": schedule_owner,
            "scheduleName": schedule_name,
            "createdAfter": write_time(created_after) if created_after else None,
            "createdBefore": write_time(created_before) if created_before else None,
            "finishedAfter": write_time(finished_after) if finished_after else None,
            "finishedBefore": write_time(finished_before) if finished_before else None,
        }
        for place, view in enumerate(self._pages("/v1/tasks", params, page_size)):
            if limit is not None and place >= limit:
                return
            yield Task.read(view)

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

    def cancel(self, task_id: str, reason: str | None = None) -> Task:
        """Ask for the task's end: at once while it is queued; a running one is told to stop (`cancel_requested`).

        Raises ApiError with `TASK_FINISHED` or `OUTCOME_UNKNOWN` where there is nothing left to cancel.
        """
        body = {} if reason is None else {"reason": reason}
        return Task.read(self.client.request("POST", f"{task_path(task_id)}/cancel", json=body))

    def _look(self, task_id: str, seconds: float, bound: float) -> Task:
        """The task, asked of a host that may hold the answer for so many seconds, within `bound` seconds."""
        params = {"waitSeconds": round(seconds, 1)} if seconds >= 0.1 else None
        stream = self._find_stream_host()
        if stream is not None:
            try:
                # One try only: the stream's host may not serve waits, or be down, and the service itself knows the truth.
                answer = self.client.request(
                    "GET", task_path(task_id), params=params, url=stream, timeout=seconds + 5, repeatable=False, stop=lambda: True
                )
                return Task.read(answer)
            except (ApiError, Unreachable) as error:
                log.debug("the stream's host does not answer waits: %s", error)
                self._stream_host = (None, time.monotonic() + ASK_STREAM_AGAIN)
        return Task.read(self.client.request("GET", task_path(task_id), params=params, timeout=bound))

    def _find_stream_host(self) -> str | None:
        """The host that can hold long requests, if it is another than the service's."""
        found, until = self._stream_host
        if time.monotonic() < until:
            return found
        own = self.client.url
        try:
            stream = self.client.request("GET", "/v1/config", timeout=10).get("streamUrl")
        except (ApiError, Unreachable):
            return None
        usable = isinstance(stream, str) and same_security(own, stream) and stream.rstrip("/") != own
        found = str(stream) if usable else None
        self._stream_host = (found, time.monotonic() + ASK_CONFIG_AGAIN)
        return found

    def _pages(self, path: str, params: dict[str, Any], page_size: int) -> Iterator[Mapping[str, Any]]:
        cursor: str | None = None
        while True:
            answer = self.client.request("GET", path, params={**params, "limit": page_size, "cursor": cursor})
            yield from answer["items"]
            cursor = answer.get("nextCursor")
            if not cursor:
                return


def take_result(task: Task) -> Any:
    """The result of an ended task, or the error that stands for its end."""
    if task.status == "succeeded":
        return task.result
    if task.status == "cancelled":
        raise TaskCancelled(task)
    if task.status == "outcome-unknown":
        raise OutcomeUnknown(task)
    raise TaskFailed(task)


def task_path(task_id: str) -> str:
    """The path of a task; an id can never reach another path."""
    return f"/v1/tasks/{quote(task_id, safe='')}"


def list_of(value: Sequence[str] | None) -> list[str] | None:
    """The values of a repeatable filter."""
    return None if value is None else [*value]


def tell_warnings(task: Task) -> None:
    """Log what the service warned of, once per type."""
    for warning in task.warnings:
        kind = (task.type, task.schema_version)
        if kind not in _never_registered_told:
            _never_registered_told.add(kind)
            text = warning.get("message") or warning.get("detail") or warning.get("code")
            log.warning("%s@%s: %s", task.type, task.schema_version, text)
