"""What the OpenAPI document says of each call beyond its declaration: its name, parameters, answers and refusals.

`openapi` refuses to write a document where a declared endpoint is missing here, or where this names one that is not declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import errors as e
from .states import STATUSES
from .wire import Readable
from .wire import answers as a
from .wire import documented as d
from .wire import fleet_answers as f
from .wire import operator_answers as o
from .wire import run_answers as r
from .wire import schedule_answers as s
from .wire.cursors import DEFAULT_LIMIT, MAX_LIMIT
from .wire.rules import TYPE

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_TIME: Schema = {"type": "string", "format": "date-time"}
_UUID: Schema = {"type": "string", "format": "uuid"}


@dataclass(frozen=True)
class Parameter:
    """A query parameter."""

    name: str
    schema: Schema
    text: str
    repeatable: bool = False
    required: bool = False
    place: str = "query"


@dataclass(frozen=True)
class Operation:
    """One call: `id` names it in generated clients, `answer` is a model (or a media type of plain text)."""

    id: str
    answer: Any
    query: tuple[Parameter, ...] = ()
    refusals: tuple[type[e.Problem], ...] = ()
    also: tuple[int, ...] = ()  # further statuses with the same answer
    body: type[Readable] | None = None  # where it shows more than the edge declares
    example: Any = None


PAGE = (
    Parameter(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        "How many items a page has at most.",
    ),
    Parameter("cursor", {"type": "string"}, "`nextCursor` of the page before, with the same filter."),
)
_TASK_FILTER = (
    Parameter("status", {"type": "array", "items": {"enum": list(STATUSES)}}, "Tasks in one of these states.", repeatable=True),
    Parameter("type", {"type": "string", "pattern": f"^{TYPE.pattern}$"}, "Tasks of this type."),
    Parameter(
        "schemaVersion", {"type": "integer", "minimum": 1, "maximum": 2_147_483_647}, "Tasks of this version of their type."
    ),
    Parameter("pool", _TEXT, "Tasks of this pool."),
    Parameter("tag", {"type": "string", "pattern": "^[^:]+:"}, "Tasks with this tag, as `key:value`."),
    Parameter("idempotencyKey", _TEXT, "The tasks that this key has named."),
    Parameter("parentId", _UUID, "Children of this task."),
    Parameter("rerunOf", _UUID, "Reruns of this task."),
    Parameter("scheduleOwner", _TEXT, "Tasks of this owner's schedules."),
    Parameter("scheduleName", _TEXT, "Tasks of schedules of this name."),
    Parameter("failureCode", _TEXT, "Tasks whose failure has this code."),
    Parameter("createdAfter", _TIME, "Tasks submitted after this instant."),
    Parameter("createdBefore", _TIME, "Tasks submitted before this instant."),
    Parameter("finishedAfter", _TIME, "Tasks settled after this instant."),
    Parameter("finishedBefore", _TIME, "Tasks settled before this instant."),
)
_CONCURRENCY_KEY = Parameter("key", _TEXT, "The concurrency key.", required=True)
_OWNER = Parameter("owner", _TEXT, "The worker id that the schedule belongs to; left out, those made through the API.")
_SUBMIT = (
    e.InvalidType,
    e.TaskTypeNotFound,
    e.IdempotencyConflict,
    e.RateLimited,
    e.LimitExceeded,
    e.NoEligibleWorker,
    e.NoEligibleInferenceWorker,
)
_REPORT = (e.StaleAttempt, e.EpochChanged)
_LEASE = (
    Parameter("X-Fence", {"type": "integer", "minimum": 1}, "The attempt's fence.", required=True, place="header"),
    Parameter("X-Lease-Token", _TEXT, "The attempt's lease token.", required=True, place="header"),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/tasks"): Operation(
        "submitTask",
        a.TaskView,
        refusals=_SUBMIT,
        also=(200,),
        example={"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}, "idempotencyKey": "hello-ada"},
    ),
    ("POST", "/v1/tasks/batch"): Operation(
        "submitBatch",
        a.StoredBatch,
        refusals=_SUBMIT,
        example={"tasks": [{"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}}]},
    ),
    ("GET", "/v1/tasks"): Operation("listTasks", a.TaskPage, query=(*_TASK_FILTER, *PAGE)),
    ("GET", "/v1/tasks/{id}"): Operation(
        "getTask",
        a.TaskView,
        query=(
            Parameter(
                "include",
                {"enum": ["attempts", "steps", "children"]},
                "`attempts` adds `attemptList`: every attempt, oldest first; `steps` and `children` without outputs and results.",
            ),
            Parameter(
                "waitSeconds",
                {"type": "number", "minimum": 0, "maximum": 20},
                "Wait for the end of the task, where the host holds waits.",
            ),
        ),
    ),
    ("GET", "/v1/tasks/{id}/journal"): Operation(
        "getJournal",
        a.EventPage,
        query=(Parameter("after", {"type": "integer", "minimum": 0, "maximum": 999_999_999}, "Events after this `seq`."), *PAGE),
    ),
    ("POST", "/v1/tasks/{id}/cancel"): Operation("cancelTask", a.TaskView, refusals=(e.TaskFinished, e.OutcomeUnknown)),
    ("POST", "/v1/tasks/{id}/resolve"): Operation("resolveTask", a.TaskView, refusals=(e.TaskNotUnknown,)),
    ("POST", "/v1/tasks/{id}/rerun"): Operation(
        "rerunTask", a.TaskView, refusals=(e.TaskNotFinished, e.OutcomeUnknown, e.IdempotencyConflict), also=(200,)
    ),
    ("POST", "/v1/tasks/{id}/signals"): Operation(
        "signalTask",
        r.Signalled,
        refusals=(e.TaskFinished, e.IdempotencyConflict, e.LimitExceeded),
        also=(200,),
        example={"name": "verified", "payload": {"by": "mail"}, "signalKey": "mail-17"},
    ),
    ("GET", "/v1/tasks/{id}/steps"): Operation("listSteps", r.StepPage, query=PAGE),
    ("GET", "/v1/tasks/{id}/children"): Operation("listChildren", r.ChildPage, query=PAGE),
    ("POST", "/v1/tasks/bulk"): Operation("bulk", o.BulkDone, refusals=(e.InvalidType, e.IdempotencyConflict)),
    ("PUT", "/v1/schedules/{name}"): Operation(
        "putSchedule",
        s.ScheduleView,
        query=(_OWNER,),
        refusals=(e.InvalidType,),
        also=(201,),
        example={"cron": "0 2 * * *", "timeZone": "Europe/Berlin", "type": "report/build", "schemaVersion": 1, "input": {}},
    ),
    ("GET", "/v1/schedules/{name}"): Operation("getSchedule", s.ScheduleView, query=(_OWNER,)),
    ("DELETE", "/v1/schedules/{name}"): Operation("removeSchedule", s.ScheduleRemoved, query=(_OWNER,)),
    ("GET", "/v1/schedules"): Operation(
        "listSchedules", s.SchedulePage, query=(Parameter("owner", _TEXT, "Only schedules of this worker id."), *PAGE)
    ),
    ("POST", "/v1/schedules/{name}/pause"): Operation("pauseSchedule", s.ScheduleView, query=(_OWNER,)),
    ("POST", "/v1/schedules/{name}/resume"): Operation("resumeSchedule", s.ScheduleView, query=(_OWNER,)),
    ("POST", "/v1/schedules/{name}/trigger"): Operation(
        "triggerSchedule",
        a.TaskView,
        query=(_OWNER,),
        refusals=(e.IdempotencyConflict,),
        also=(200,),
        example={"idempotencyKey": "by-hand-17"},
    ),
    ("POST", "/v1/claims"): Operation(
        "claim",
        a.Claimed,
        refusals=(e.InvalidType,),
        example={
            "workerId": "greeter",
            "instanceId": "host-1",
            "claimId": "claim-1",
            "slots": 1,
            "handlers": [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}],
        },
    ),
    ("POST", "/v1/attempts/heartbeat"): Operation("heartbeat", a.Heartbeats, body=d.HeartbeatBody),
    ("POST", "/v1/attempts/complete"): Operation("complete", a.Completed, body=d.CompleteBody),
    ("POST", "/v1/attempts/release"): Operation("release", a.Released, body=d.ReleaseBody),
    ("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/heartbeat"): Operation(
        "heartbeatOne", a.RenewedOne, refusals=(*_REPORT, e.RateLimited), body=d.HeartbeatOne
    ),
    ("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/complete"): Operation(
        "completeOne", a.Ended, refusals=_REPORT, body=d.CompletionOne
    ),
    ("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/release"): Operation(
        "releaseOne", a.Ended, refusals=_REPORT, body=d.GivebackOne
    ),
    ("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/steps"): Operation(
        "storeStep", r.StoredStep, refusals=(*_REPORT, e.LimitExceeded), body=d.StepOne
    ),
    ("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/children"): Operation(
        "spawnChild", r.Spawned, refusals=(*_REPORT, e.LimitExceeded, e.InvalidType), body=d.ChildOne
    ),
    ("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/steps"): Operation(
        "attemptSteps", r.StepPage, query=(*_LEASE, *PAGE), refusals=_REPORT
    ),
    ("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/children"): Operation(
        "attemptChildren", r.ChildPage, query=(*_LEASE, *PAGE), refusals=_REPORT
    ),
    ("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/signals"): Operation(
        "attemptSignals", r.SignalPage, query=(*_LEASE, *PAGE), refusals=_REPORT
    ),
    ("PUT", "/v1/workers/{workerId}"): Operation(
        "registerWorker",
        f.Registered,
        refusals=(e.InvalidType, e.WorkerIdConflict),
        example={
            "instanceId": "host-1",
            "slots": 1,
            "handlers": [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}],
        },
    ),
    ("DELETE", "/v1/workers/{workerId}/instances/{instanceId}"): Operation("removeInstance", f.Removed),
    ("POST", "/v1/workers/{workerId}/drain"): Operation("drainWorker", o.Drained),
    ("DELETE", "/v1/workers/{workerId}"): Operation("removeWorker", o.Unregistered),
    ("GET", "/v1/task-types"): Operation("listTaskTypes", f.TaskTypePage, query=PAGE),
    ("GET", "/v1/task-types/{group}/{name}/{version}"): Operation(
        "getTaskType", f.TaskTypeView, refusals=(e.InvalidType, e.TaskTypeNotFound)
    ),
    ("POST", "/v1/task-types/{group}/{name}/{version}/pause"): Operation("pauseType", o.PausedType, refusals=(e.InvalidType,)),
    ("POST", "/v1/task-types/{group}/{name}/{version}/resume"): Operation("resumeType", o.PausedType, refusals=(e.InvalidType,)),
    ("POST", "/v1/project/pause"): Operation("pauseProject", o.PausedProject),
    ("POST", "/v1/project/resume"): Operation("resumeProject", o.PausedProject),
    ("GET", "/v1/limits"): Operation(
        "listLimits", o.Limits, query=(Parameter("key", _TEXT, "Only the limit of this concurrency key."), *PAGE)
    ),
    ("PUT", "/v1/limits"): Operation("setLimit", o.KeyLimit, query=(_CONCURRENCY_KEY,)),
    ("DELETE", "/v1/limits"): Operation("dropLimit", o.KeyLimit, query=(_CONCURRENCY_KEY,)),
    ("PUT", "/v1/limits/rate"): Operation("setRate", o.SubmitRateSet, example={"perSecond": 50, "burst": 200}),
    ("GET", "/v1/workers"): Operation("listWorkers", f.WorkerPage, query=PAGE),
    ("GET", "/v1/workers/{workerId}"): Operation("getWorker", f.WorkerView),
    ("GET", "/v1/doctor"): Operation(
        "doctor",
        f.DoctorView | f.WorkerDoctorView,
        query=(Parameter("workerId", {"type": "string"}, "With a worker key: the worker whose queues are meant."),),
    ),
    ("GET", "/v1/config"): Operation("config", f.Config),
    ("GET", "/v1/metrics"): Operation("metrics", "text/plain"),
    ("POST", "/v1/keys"): Operation(
        "createKey",
        a.NewApiKey,
        refusals=(e.NotFound, e.IdempotencyConflict),
        also=(200,),
        example={"name": "web shop", "kind": "task-producer", "idempotencyKey": "web-shop-1"},
    ),
    ("GET", "/v1/keys"): Operation("listKeys", a.ApiKeyPage, query=PAGE),
    ("POST", "/v1/keys/{id}/revoke"): Operation("revokeKey", a.RevokedApiKey),
    ("POST", "/v1/keys/{id}/rotate"): Operation(
        "rotateKey", a.NewApiKey, refusals=(e.IdempotencyConflict,), also=(200,), example={"overlapSeconds": 3600}
    ),
    ("POST", "/v1/stream-tickets"): Operation("createStreamTicket", o.Ticket, example={"path": "/v1/events/stream"}),
    ("GET", "/v1/audit"): Operation("listAudit", o.AuditPage, query=PAGE),
    ("POST", "/v1/projects"): Operation(
        "createProject", a.NewProjectView, refusals=(e.IdempotencyConflict,), also=(200,), example={"name": "acme"}
    ),
    ("GET", "/v1/projects"): Operation("listProjects", a.ProjectPage, query=PAGE),
    ("GET", "/healthz"): Operation("healthz", f.Health),
    ("GET", "/readyz"): Operation("readyz", f.Health, refusals=(e.Unavailable,)),
    ("GET", "/openapi.json"): Operation("openapi", "application/json"),
    ("GET", "/tasks.md"): Operation("tasksPage", "text/markdown"),
}
