"""Schedules: what the service submits by itself, and when. `TaskProducer.schedules`; a worker brings its own (`TaskWorker.schedule`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from interlock.contract import TaskContract, make_submission
from interlock.reading import TIME, fill, path_of, read_pages
from interlock.retry import Retry
from interlock.submission import make_key, to_seconds
from interlock.tasks import Task, read_time

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from interlock.client import Client

Overlap = Literal["allow", "skip", "cancel-previous"]
CatchUp = Literal["none", "last", "all"]
In = TypeVar("In")


class ScheduleOptions(TypedDict, total=False):
    """When a schedule is due, and the options of the tasks that it submits (those of SubmitOptions that every task may share).

    Either `cron`, five fields read in `time_zone` (an IANA name; absent: UTC), or `every`, seconds or a timedelta.
    `overlap` says what happens while an earlier task has not ended: the next runs beside it (`allow`, the default), is left
    out (`skip`), or the earlier one is asked to cancel and the next waits for its end (`cancel-previous`). `catch_up` says
    which of the instants that passed while the service was down are made up for: `none`, the `last` (default), or `all`.
    """

    cron: str | None
    time_zone: str | None
    every: float | timedelta | None
    overlap: Overlap | None
    catch_up: CatchUp | None
    tags: Mapping[str, str] | None
    priority: int | None
    pool: str | None
    retry: Retry | None
    timeout: float | timedelta | None
    lease: float | timedelta | None
    start_deadline: float | timedelta | None
    concurrency: tuple[str, int] | None
    require_worker: Literal["registered", "online"] | None
    trace: Mapping[str, str] | str | None


@dataclass(frozen=True)
class Schedule:
    """A schedule as the service has it. `owner` is the worker id whose registration brought it; None: made through the API.

    `next_firings` are its next five instants (of a paused one: if it were resumed now), `last_firing` the latest one that was
    dealt with (`dueAt`, `outcome`, `taskId`, `missed`). `fired`, `skipped` and `missed` count instants. `error` says why it
    does not fire. The input is absent in lists.
    """

    name: str
    type: str
    schema_version: int = 1
    owner: str | None = None
    cron: str | None = None
    time_zone: str | None = None
    every_seconds: float | None = None
    input: Any = field(default=None, repr=False)
    overlap: str = "allow"
    catch_up: str = "last"
    paused: bool = False
    next_due_at: datetime | None = field(default=None, metadata=TIME)
    next_firings: tuple[datetime, ...] = field(
        default=(), repr=False, metadata={"read": lambda times: tuple(read_time(time) for time in times)}
    )
    last_firing: Mapping[str, Any] | None = field(default=None, repr=False)
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    error: Mapping[str, Any] | None = None
    created_at: datetime | None = field(default=None, repr=False, metadata=TIME)
    updated_at: datetime | None = field(default=None, repr=False, metadata=TIME)
    duplicate: bool = field(default=False, repr=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


class Schedules:
    """The schedules of the project: `TaskProducer.schedules`. `owner`, everywhere, is a worker id; None: the API's own.

    Every call raises ApiError when the service refuses (`NOT_FOUND` for a schedule that is not there) and Unreachable when no
    answer came in time; each may be repeated.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    def put(
        self, name: str, type: TaskContract[In, Any], input: In, *, owner: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    @overload
    def put(
        self,
        name: str,
        type: str,
        schema_version: int = 1,
        input: Any = None,
        *,
        owner: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule: ...
    def put(
        self, name: str, type: str | TaskContract[Any, Any], *given: Any, owner: str | None = None, **options: Any
    ) -> Schedule:
        """Make or change a schedule: `put(name, type, schema_version, input, …)` or `put(name, contract, input, …)`.

        The options are those of ScheduleOptions. The same again changes nothing (`duplicate`); a pause is kept, and the next
        instant too unless the rule changes. What is due by the old rule is fired first.
        """
        body = make_schedule(type, *given, **options)
        return self._schedule("PUT", path_of("schedules", name), owner, body)

    def get(self, name: str, *, owner: str | None = None) -> Schedule:
        """The schedule as it is now."""
        return self._schedule("GET", path_of("schedules", name), owner)

    def list(self, *, owner: str | None = None, page_size: int = 50) -> Iterator[Schedule]:
        """All schedules by owner and name, or those of one worker id; pages are fetched as the iterator moves on."""
        params = {"owner": owner} if owner is not None else None
        return (fill(Schedule, item) for item in read_pages(self._client, "/v1/schedules", params, page_size))

    def delete(self, name: str, *, owner: str | None = None) -> bool:
        """Take a schedule away; tasks that it made go on. False if there was none."""
        answer = self._client.request("DELETE", path_of("schedules", name), params={"owner": owner})
        return not answer.get("duplicate")

    def pause(self, name: str, *, owner: str | None = None) -> Schedule:
        """Let it fire no more until it is resumed; a later put keeps the pause."""
        return self._schedule("POST", path_of("schedules", name, "pause"), owner, {})

    def resume(self, name: str, *, owner: str | None = None) -> Schedule:
        """Let it fire again, from its next instant on: what was due meanwhile is not made up for."""
        return self._schedule("POST", path_of("schedules", name, "resume"), owner, {})

    def trigger(self, name: str, *, owner: str | None = None, idempotency_key: str | None = None) -> Task:
        """Make a task of it at once, paused or not; the same key makes one. Its instants stay as they are.

        Unless the schedule allows overlap, the task waits until those before it have ended.
        """
        body = {"idempotencyKey": make_key() if idempotency_key is None else idempotency_key}
        path = path_of("schedules", name, "trigger")
        return Task.read(self._client.request("POST", path, params={"owner": owner}, json=body))

    def _schedule(self, method: str, path: str, owner: str | None, body: dict[str, Any] | None = None) -> Schedule:
        return fill(Schedule, self._client.request(method, path, params={"owner": owner}, json=body))


def make_schedule(
    type: str | TaskContract[Any, Any],
    *given: Any,
    cron: str | None = None,
    time_zone: str | None = None,
    every: float | timedelta | None = None,
    overlap: Overlap | None = None,
    catch_up: CatchUp | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A schedule on the wire, without its name. Raises TypeError for an option that only a single task can have."""
    for name in ("idempotency_key", "run_at", "delay"):
        if name in options:
            raise TypeError(f"a schedule has no {name}: it says itself when its tasks are due")
    if (cron is None) == (every is None):
        raise TypeError("a schedule has either cron= or every=")
    body = make_submission(type, *given, **options).to_wire()
    del body["idempotencyKey"]
    rule = {"cron": cron, "timeZone": time_zone, "everySeconds": to_seconds(every), "overlap": overlap, "catchUp": catch_up}
    return {**{name: value for name, value in rule.items() if value is not None}, **body}
