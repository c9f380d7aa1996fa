"""What the answers of operator calls look like; see `answers`."""

from __future__ import annotations

from typing import Any

from .answers import Shown, Uuid, When


class BulkDone(Shown):
    """What a bulk call did; `skipped` are those whose state refuses the action, `more` says that the limit of one call was reached."""

    matched: int
    changed: int
    skipped: int
    more: bool
    duplicate: bool


class PausedType(Shown):
    """Whether a type may be claimed."""

    type: str
    schema_version: int
    paused: bool
    duplicate: bool


class PausedProject(Shown):
    """Whether anything of the project may be claimed."""

    project: str
    paused: bool
    duplicate: bool


class KeyLimit(Shown):
    """The limit that an operator set for a concurrency key; null: only the tasks' own."""

    key: str
    limit: int | None
    duplicate: bool


class HeldLimit(Shown):
    """A limit that an operator set, with the number of tasks that hold the key now."""

    key: str
    limit: int
    held: int


class SubmitRate(Shown):
    """How many tasks each producer key may submit; nulls: no limit."""

    per_second: float | None
    burst: int | None


class SubmitRateSet(SubmitRate):
    """The rate that holds from now on."""

    duplicate: bool


class Limits(Shown):
    """A page of the limits of a project, by key, and its rate of submits."""

    items: list[HeldLimit]
    next_cursor: str | None
    rate: SubmitRate | None


class Drained(Shown):
    """The processes that were alive and are asked to end."""

    worker_id: str
    instances: list[str]
    duplicate: bool


class Unregistered(Shown):
    """A registration that is gone."""

    worker_id: str
    removed: bool
    duplicate: bool


class AuditLine(Shown):
    """Who did what, when, to what."""

    id: Uuid
    at: When
    key_id: str | None
    action: str
    target: str | None
    detail: Any


class AuditPage(Shown):
    """A page of the trail, newest first."""

    items: list[AuditLine]
    next_cursor: str | None


class Ticket(Shown):
    """Opens one stream once, until it expires."""

    ticket: str
    expires_at: When
