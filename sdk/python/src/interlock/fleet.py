"""What an operator is told: workers, task types, keys, limits, the audit trail. `raw` keeps the whole answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from interlock.reading import TIME, fill


@dataclass(frozen=True)
class WorkerInstance:
    """One process of a worker. `state` is `ready`, `full`, `draining` or `offline`."""

    instance_id: str
    state: str
    pool: str = "default"
    slots: int = 0
    used: int = 0
    host: str | None = None
    build: str | None = None
    sdk: str | None = None
    drain_requested: bool = False
    started_at: datetime | None = field(default=None, metadata=TIME)
    last_seen: datetime | None = field(default=None, metadata=TIME)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def read_instances(items: Any) -> tuple[WorkerInstance, ...]:
    """The processes in an answer."""
    return tuple(fill(WorkerInstance, item) for item in items)


@dataclass(frozen=True)
class WorkerInfo:
    """A worker: the best state of its processes, the slots of those online. One worker alone also has its `attempts`."""

    worker_id: str
    state: str
    registered: bool
    pool: str | None = None
    slots: int = 0
    used: int = 0
    build: str | None = None
    registered_at: datetime | None = field(default=None, metadata=TIME)
    last_seen: datetime | None = field(default=None, metadata=TIME)
    handlers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, metadata={"read": tuple})
    instance_count: int = 0
    instances: tuple[WorkerInstance, ...] = field(default=(), repr=False, metadata={"read": read_instances})
    attempts: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, metadata={"read": tuple})
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class TaskTypeInfo:
    """A task type at one version: `queued` = `ready` + `not_due` + `blocked`. Percentiles and outcomes are in `raw`."""

    type: str
    schema_version: int
    registered: bool
    paused: bool
    queued: int
    ready: int
    not_due: int
    blocked: int
    running: int
    waiting: int
    outcome_unknown: int
    oldest_due_age_seconds: float | None = None
    online: Mapping[str, Any] = field(default_factory=dict, repr=False)
    handlers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, metadata={"read": tuple})
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class KeyInfo:
    """A key as it is listed, without its secret."""

    id: str
    name: str
    kind: str
    project: str | None = None
    types: tuple[str, ...] | None = field(default=None, metadata={"read": tuple})
    pools: tuple[str, ...] | None = field(default=None, metadata={"read": tuple})
    worker_ids: tuple[str, ...] | None = field(default=None, metadata={"read": tuple})
    may_schedule: bool = False
    created_at: datetime | None = field(default=None, metadata=TIME)
    expires_at: datetime | None = field(default=None, metadata=TIME)
    revoked_at: datetime | None = field(default=None, metadata=TIME)


@dataclass(frozen=True)
class NewKey(KeyInfo):
    """A key just made. `key` is the key itself, told this once: in no repr; None in the answer to a repeat."""

    key: str | None = field(default=None, repr=False)
    duplicate: bool = False


@dataclass(frozen=True)
class HeldLimit:
    """The limit that an operator set for a concurrency key, and how many tasks hold the key now."""

    key: str
    limit: int
    held: int = 0


@dataclass(frozen=True)
class SubmitRate:
    """How many tasks each producer key may submit."""

    per_second: float
    burst: int


@dataclass(frozen=True)
class Limits:
    """The limits that operators set in the project; `rate` is None where submits are not limited."""

    keys: tuple[HeldLimit, ...]
    rate: SubmitRate | None


@dataclass(frozen=True)
class BulkDone:
    """What a bulk call did. `skipped` tasks are in a state that refuses the action; `more` says to call again."""

    matched: int
    changed: int
    skipped: int
    more: bool = False
    duplicate: bool = False


@dataclass(frozen=True)
class AuditEntry:
    """Who (`key_id`) did what, when, to what."""

    id: str
    at: datetime | None = field(metadata=TIME)
    key_id: str | None
    action: str
    target: str | None
    detail: Any = None
