"""What the answers about schedules look like; see `answers`."""

from __future__ import annotations

from typing import Any, Literal

from .answers import Shown, Uuid, When
from .producer import Concurrency, Retry, Trace
from .schedules import CatchUp, Overlap


class LastFiring(Shown):
    """The latest due instant that was dealt with; `missed` counts those before it that were passed over with it."""

    due_at: When
    at: When
    outcome: Literal["fired", "skipped", "missed", "refused"]
    task_id: Uuid | None
    missed: int


class ScheduleError(Shown):
    """Why a schedule does not fire."""

    message: str
    at: When | None


class ScheduleItem(Shown):
    """A schedule. `owner` is a worker id, or null for those made through the API; of a paused one, `nextFirings` are those if it
    were resumed now.
    """

    name: str
    owner: str | None
    cron: str | None
    time_zone: str | None
    every_seconds: float | None
    type: str
    schema_version: int
    overlap: Overlap
    catch_up: CatchUp
    pool: str
    priority: int
    retry: Retry | None
    start_deadline_seconds: float | None
    timeout_seconds: float | None
    lease_seconds: float | None
    concurrency: Concurrency | None
    tags: dict[str, str]
    require_worker: Literal["registered", "online"] | None
    trace: Trace | None
    paused: bool
    paused_at: When | None
    next_due_at: When | None
    next_firings: list[When]
    last_firing: LastFiring | None
    fired: int
    skipped: int
    missed: int
    error: ScheduleError | None
    created_at: When
    updated_at: When
    duplicate: bool


class ScheduleView(ScheduleItem):
    """A schedule in full."""

    input: Any


class SchedulePage(Shown):
    """A page of schedules by owner and name."""

    items: list[ScheduleItem]
    next_cursor: str | None


class ScheduleRemoved(Shown):
    """A schedule that was taken away; `duplicate` where there was none."""

    name: str
    owner: str | None
    removed: bool
    duplicate: bool
