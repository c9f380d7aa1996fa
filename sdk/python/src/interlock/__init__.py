"""Interlock: submit durable tasks, run them anywhere.

    producer = TaskProducer();  producer.submit("demo/hello", 1, {"name": "Ada"}).result(timeout=60)
    worker = TaskWorker(worker_id="hello");  @worker.handle("demo/hello", 1, effect_safety="pure")

To read: `producer` and `tasks` for who submits, `waiting` and `watching` for who wants to know, `async_producer` for event
loops, `operator` for who is in charge, `contract` for typed tasks; `worker`, then `ledger` (what it holds), `exchange` (claim
and report), `running` (handlers; `isolation` those in processes), `renewal` (leases), `stream` (hints), `spool` (outcomes on
disk) for who runs; `client` below all.
"""

from interlock.async_producer import AsyncTaskHandle, AsyncTaskProducer, AsyncWatch
from interlock.client import Client
from interlock.context import TaskContext, TaskLog
from interlock.contract import TaskContract, task
from interlock.errors import (
    ApiError,
    Cancelled,
    ConfigurationError,
    InterlockError,
    NotJson,
    NotValid,
    OutcomeUnknown,
    Retryable,
    SpoolError,
    SpoolLocked,
    TaskCancelled,
    TaskError,
    TaskFailed,
    UnknownOutcome,
    Unreachable,
)
from interlock.fleet import (
    AuditEntry,
    BulkDone,
    HeldLimit,
    KeyInfo,
    Limits,
    NewKey,
    SubmitRate,
    TaskTypeInfo,
    WorkerInfo,
    WorkerInstance,
)
from interlock.keyring import Keys
from interlock.operator import Operator
from interlock.producer import TaskHandle, TaskProducer
from interlock.reading import TaskFilter
from interlock.retry import Retry
from interlock.submission import Submission, SubmitOptions
from interlock.tasks import Attempt, Failure, JournalEvent, Progress, Task
from interlock.version import VERSION
from interlock.watching import Watch
from interlock.worker import TaskWorker

__version__ = VERSION

__all__ = [
    "ApiError",
    "AsyncTaskHandle",
    "AsyncTaskProducer",
    "AsyncWatch",
    "Attempt",
    "AuditEntry",
    "BulkDone",
    "Cancelled",
    "Client",
    "ConfigurationError",
    "Failure",
    "HeldLimit",
    "InterlockError",
    "JournalEvent",
    "KeyInfo",
    "Keys",
    "Limits",
    "NewKey",
    "NotJson",
    "NotValid",
    "Operator",
    "OutcomeUnknown",
    "Progress",
    "Retry",
    "Retryable",
    "SpoolError",
    "SpoolLocked",
    "Submission",
    "SubmitOptions",
    "SubmitRate",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskContract",
    "TaskError",
    "TaskFailed",
    "TaskFilter",
    "TaskHandle",
    "TaskLog",
    "TaskProducer",
    "TaskTypeInfo",
    "TaskWorker",
    "UnknownOutcome",
    "Unreachable",
    "Watch",
    "WorkerInfo",
    "WorkerInstance",
    "__version__",
    "task",
]
