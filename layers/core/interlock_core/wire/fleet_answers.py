"""What the answers about workers, task types and the service look like; see `answers`."""

from __future__ import annotations

from typing import Any, Literal

from .answers import Kind, Shown, Uuid, When, WorkerState
from .structs import EffectSafety


class ServedType(Shown):
    """A handler that was registered."""

    type: str
    schema_version: int
    effect_safety: EffectSafety


class BroughtSchedule(Shown):
    """A schedule that came with a registration."""

    name: str
    next_due_at: When | None
    paused: bool


class Registered(Shown):
    """A registration as it now stands."""

    worker_id: str
    instance_id: str
    pool: str
    slots: int
    build: str | None
    handlers: list[ServedType]
    schedules: list[BroughtSchedule] | None = None
    registered_at: When
    server_time: When


class Removed(Shown):
    """A process that was taken off the list; `duplicate` where it was before."""

    worker_id: str
    instance_id: str
    duplicate: bool


class ServedHandler(ServedType):
    """A handler of a worker."""

    reconciles: bool
    slots: int | None


class Instance(Shown):
    """One process of a worker."""

    instance_id: str
    state: WorkerState
    pool: str
    slots: int
    used: int
    host: str | None
    build: str | None
    sdk: str | None
    registered: bool
    drain_requested: bool
    started_at: When
    last_seen: When
    serves: list[str]


class WorkerItem(Shown):
    """A worker. `slots` and `used` are those of its online processes; `instances` are the 100 that were seen last."""

    worker_id: str
    state: WorkerState
    registered: bool
    pool: str | None
    slots: int
    used: int
    build: str | None
    registered_at: When | None
    last_seen: When | None
    handlers: list[ServedHandler]
    instance_count: int
    instances: list[Instance]


class RunningAttempt(Shown):
    """An attempt that a worker holds."""

    task_id: Uuid
    attempt_id: Uuid
    type: str
    schema_version: int
    number: int
    instance_id: str
    started_at: When
    lease_expires_at: When
    cancel_requested: bool


class WorkerView(WorkerItem):
    """A worker with its running attempts (at most 200)."""

    attempts: list[RunningAttempt]


class WorkerPage(Shown):
    """A page of workers by id."""

    items: list[WorkerItem]
    next_cursor: str | None


class Capacity(Shown):
    """Slots of online processes that are not draining."""

    instances: int
    slots: int
    used: int
    free: int


class PoolCapacity(Capacity):
    """The same for one pool."""

    pool: str
    draining: int


class Outcomes(Shown):
    """How many tasks were settled, by how."""

    succeeded: int
    failed: int
    cancelled: int


class Spans(Shown):
    """Outcomes of the last hour and the last day."""

    hour: Outcomes
    day: Outcomes


class Percentiles(Shown):
    """Seconds, over the last hour; null where nothing ended. The mean of the minutes' percentiles, weighted by outcomes."""

    p50: float | None
    p95: float | None


class TypeHandler(Shown):
    """A worker id that serves the type."""

    worker_id: str
    pool: str
    effect_safety: EffectSafety
    reconciles: bool
    slots: int | None


class HandlerRetryView(Shown):
    """The handler's own retry policy; null where the default holds."""

    max_attempts: int | None
    initial_delay_seconds: float | None
    multiplier: float | None
    max_delay_seconds: float | None
    jitter: float | None


class TypeHandlerView(TypeHandler):
    """The same, with what its program declares. `leftOut`: description and schemas did not fit in the answer beside the others'."""

    description: str | None
    input_schema: Any
    result_schema: Any
    left_out: bool
    retry: HandlerRetryView
    timeout_seconds: float | None
    lease_seconds: float | None
    start_deadline_seconds: float | None


class TypeFacts(Shown):
    """One type at one version: its queue, who serves it, what became of it. `queued` = `ready` + `notDue` + `blocked`."""

    type: str
    schema_version: int
    registered: bool
    first_registered_at: When | None
    queued: int
    ready: int
    not_due: int
    blocked: int
    running: int
    waiting: int
    outcome_unknown: int
    oldest_due_age_seconds: float | None
    paused: bool
    online: Capacity
    pools: list[PoolCapacity]
    outcomes: Spans
    wait_seconds: Percentiles
    run_seconds: Percentiles


class TaskTypeItem(TypeFacts):
    """A task type in a list."""

    handlers: list[TypeHandler]


class TaskTypeView(TypeFacts):
    """A task type in full."""

    handlers: list[TypeHandlerView]


class TaskTypePage(Shown):
    """A page of task types by name and version."""

    items: list[TaskTypeItem]
    next_cursor: str | None


class Config(Shown):
    """What clients must know. `limits`: durations in seconds, sizes in bytes, by name."""

    stream_url: str | None
    poll_seconds: float
    features: list[str]
    limits: dict[str, float]
    version: str
    epoch: int


class Outbox(Shown):
    """Work that is due for longer than a poll while a slot for it is free; ends of children that no parent has looked at."""

    due_with_free_slot: int
    oldest_seconds: float | None
    notices_not_delivered: int


class Debts(Shown):
    """What the service owes and has not done yet."""

    expired_leases: int
    outbox: Outbox
    retention_backlog: int


class Transaction(Shown):
    """The oldest open transaction of the database."""

    pid: int
    application: str | None
    state: str | None


class DoctorPlace(Shown):
    """Where the answer comes from."""

    database_time: When
    host_clock_drift_seconds: float
    schema_version: str | None
    version: str
    epoch: int
    project: str
    queue_depth: int
    oldest_due_age_seconds: float | None
    last_sweep_at: When | None


class BrokenSchedule(Shown):
    """A schedule that does not fire, and why."""

    owner: str | None
    name: str
    message: str
    at: When


class DoctorView(DoctorPlace):
    """The health of the service, to a producer or an operator."""

    online_workers: int
    outcome_unknown: int
    debts: Debts
    broken_schedules: list[BrokenSchedule]
    last_retention_at: When | None
    oldest_transaction_seconds: float | None
    oldest_transaction: Transaction | None
    stream_lag_seconds: float | None
    prepared_statements: bool


class DoctorKey(Shown):
    """The key that asks."""

    id: str
    kind: Kind
    types: list[str] | None
    pools: list[str] | None
    worker_ids: list[str] | None


class Queue(Shown):
    """Due work of one type in one pool."""

    type: str
    schema_version: int
    pool: str
    queued: int
    oldest_due_age_seconds: float | None


class WorkerDoctorView(DoctorPlace):
    """The health of the service, to a worker: itself, and the queues of its types."""

    key: DoctorKey
    workers: list[WorkerItem]
    queues: list[Queue]


class Health(Shown):
    """It answers."""

    status: Literal["ok", "ready"]
