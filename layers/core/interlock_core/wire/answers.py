"""What the answers look like: the OpenAPI document is made from these models, and the tests hold the service to it.

Answers are built as plain dicts, never through these models: they describe, they do not cost. A field without a default is always
there (null where its type says so); one with a default may be absent. Clients ignore fields that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .producer import Concurrency, Trace
from .structs import EffectSafety

Uuid = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
When = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Status = Literal["queued", "running", "waiting", "outcome-unknown", "succeeded", "failed", "cancelled"]
Kind = Literal["task-producer", "task-worker", "operator", "metrics", "admin"]
WorkerState = Literal["ready", "full", "draining", "offline"]


class Shown(BaseModel):
    """A JSON object of an answer."""

    model_config = ConfigDict(alias_generator=to_camel, defer_build=True)


class FieldProblem(Shown):
    """One broken field, by its JSON pointer."""

    pointer: str
    message: str


class ProblemView(Shown):
    """A refusal (RFC 9457): `code` is for programs, `next` says what the caller can do now."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    next: str
    request_id: str | None = None
    errors: list[FieldProblem] = []


class Failure(Shown):
    """Why a task failed, or what is known of an unknown outcome."""

    code: str
    message: str
    details: Any = None
    attempt_id: Uuid | None = None


class Progress(Shown):
    """The latest progress of the current attempt."""

    percent: float | None = None
    message: str | None = None
    at: When | None = None


class CurrentAttempt(Shown):
    """The latest attempt."""

    id: Uuid
    number: int
    fence: int
    worker_id: str | None
    instance_id: str | None
    effect_safety: EffectSafety | None
    started_at: When | None
    lease_expires_at: When | None
    deadline_at: When | None


class PastAttempt(Shown):
    """One attempt, as the journal tells it."""

    id: Uuid
    number: int
    fence: int
    worker_id: str
    instance_id: str
    effect_safety: EffectSafety
    started_at: When
    ended_at: When | None
    end: str | None


class RetryView(Shown):
    """The policy that is in force."""

    max_attempts: int
    initial_delay_seconds: float
    multiplier: float
    max_delay_seconds: float
    jitter: float


class Waiting(Shown):
    """Why a queued task waits, and what would start it."""

    reason: Literal[
        "no-worker",
        "workers-full",
        "workers-draining",
        "not-due",
        "retry-delay",
        "paused",
        "concurrency-limit",
        "previous-running",
        "sleeping",
        "signal",
        "children",
    ]
    detail: str
    next: str


class Warned(Shown):
    """Something that was done as asked and is probably not what was meant."""

    code: str
    message: str


class TaskItem(Shown):
    """A task in a list: without input and result."""

    id: Uuid
    project: str
    type: str
    schema_version: int
    pool: str
    status: Status
    settled: bool
    priority: int
    failure: Failure | None
    progress: Progress | None
    attempt: CurrentAttempt | None
    attempts: int
    retry: RetryView
    lease_seconds: float
    timeout_seconds: float | None
    start_deadline_seconds: float | None
    concurrency: Concurrency | None
    created_at: When
    due_at: When
    started_at: When | None
    finished_at: When | None
    cancel_requested: bool
    idempotency_key: str | None
    deduplicated: bool
    duplicate: bool
    tags: dict[str, str]
    trace: Trace | None
    rerun_of: Uuid | None
    parent_id: Uuid | None
    schedule_owner: str | None
    schedule_name: str | None
    effect_scope: Uuid
    journal_seq: int
    warnings: list[Warned]
    waiting: Waiting | None = None


class TaskView(TaskItem):
    """A task. `input` and `result` are exactly the values that were sent."""

    input: Any
    result: Any
    attempt_list: list[PastAttempt] | None = None
    steps: list[Any] | None = None
    children: list[Any] | None = None


class TaskPage(Shown):
    """A page of tasks; `nextCursor` is null on the last one."""

    items: list[TaskItem]
    next_cursor: str | None


class Stored(Shown):
    """One item of a batch: its task, new or named by its idempotency key before."""

    id: Uuid
    deduplicated: bool


class StoredBatch(Shown):
    """The tasks of a batch, in its order."""

    items: list[Stored]


class Event(Shown):
    """One event of a journal."""

    seq: int
    at: When
    kind: str
    data: Any
    attempt_id: Uuid | None = None


class EventPage(Shown):
    """A page of events."""

    items: list[Event]
    next_cursor: str | None


class Reconcile(Shown):
    """Why the handler's hook is to be asked before anything runs: an earlier attempt may have had its effect."""

    attempt_id: Uuid
    reason: str


class ClaimedAttempt(Shown):
    """One leased attempt, with all that its handler needs."""

    task_id: Uuid
    attempt_id: Uuid
    attempt_number: int
    max_attempts: int
    fence: int
    lease_token: str
    lease_expires_at: When
    lease_seconds: float
    deadline_at: When | None
    reconcile: Reconcile | None
    type: str
    schema_version: int
    pool: str
    input: Any
    tags: dict[str, str]
    trace: Trace | None
    effect_scope: Uuid
    cancel_requested: bool
    steps: list[Any]
    steps_cursor: str | None = None
    rerun_of: Uuid | None
    parent_id: Uuid | None


class Claimed(Shown):
    """What a claim leased; `more`: ready work is left; `drain`: an operator asks this worker to stop claiming."""

    attempts: list[ClaimedAttempt]
    more: bool
    poll_after_seconds: float
    server_time: When
    drain: bool | None = None


class Refused(Shown):
    """An item of a batch that was not carried out."""

    attempt_id: str | None
    error: ProblemView


class ClaimRefused(Shown):
    """Why the claim of a completion was not carried out; the completions were."""

    error: ProblemView


class Renewed(Shown):
    """A renewed lease; `stop` asks the handler to end."""

    attempt_id: Uuid
    lease_expires_at: When
    stop: Literal["cancel", "timeout"] | None


class RenewedOne(Renewed):
    """A renewed lease, in the single form."""

    server_time: When
    drain: bool | None = None


class Heartbeats(Shown):
    """Per item a renewed lease or an error, in order."""

    attempts: list[Renewed | Refused]
    server_time: When
    drain: bool | None = None


class Ended(Shown):
    """An attempt that ended, and what its task became."""

    attempt_id: Uuid
    task_status: Status
    duplicate: bool


class Completed(Shown):
    """Per item its end or an error, in order, and the answer of the claim if there was one."""

    completions: list[Ended | Refused]
    claim: Claimed | ClaimRefused | None = None


class Released(Shown):
    """Per item its end or an error, in order."""

    attempts: list[Ended | Refused]


class ApiKey(Shown):
    """A key of the project, without its secret."""

    id: str
    name: str
    kind: Kind
    project: str | None
    types: list[str] | None
    pools: list[str] | None
    worker_ids: list[str] | None
    may_schedule: bool
    created_at: When
    expires_at: When | None
    revoked_at: When | None


class NewApiKey(ApiKey):
    """A key that was made now; `key` is shown this once and is absent where `duplicate` is true."""

    duplicate: bool
    key: str | None = None


class RevokedApiKey(ApiKey):
    """A revoked key; `duplicate` where it was revoked before."""

    duplicate: bool


class ApiKeyPage(Shown):
    """A page of keys, newest first."""

    items: list[ApiKey]
    next_cursor: str | None


class Project(Shown):
    """A project."""

    name: str
    created_at: When
    require_worker: Literal["registered", "online"] | None


class NewProjectView(Project):
    """A project that was made now, or was there (`duplicate`)."""

    duplicate: bool


class ProjectPage(Shown):
    """A page of projects by name."""

    items: list[Project]
    next_cursor: str | None
