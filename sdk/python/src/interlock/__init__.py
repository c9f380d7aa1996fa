"""Interlock: submit durable tasks, run them anywhere.

    producer = TaskProducer();  producer.submit("demo/hello", 1, {"name": "Ada"}).result(timeout=60)
    worker = TaskWorker(worker_id="hello");  @worker.handle("demo/hello", 1, effect_safety="pure")

To read: `producer` and `task` for who submits; `worker`, then `ledger` (what it holds), `exchange` (claim and report),
`running` (handlers), `renewal` (leases), `stream` (hints), `spool` (outcomes on disk) for who runs; `client` below both.
"""

from interlock.client import Client
from interlock.context import TaskContext, TaskLog
from interlock.errors import (
    ApiError,
    Cancelled,
    ConfigurationError,
    InterlockError,
    NotJson,
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
from interlock.producer import TaskHandle, TaskProducer
from interlock.retry import Retry
from interlock.submission import Submission
from interlock.task import Attempt, Failure, JournalEvent, Progress, Task
from interlock.version import VERSION
from interlock.worker import TaskWorker

__version__ = VERSION

__all__ = [
    "ApiError",
    "Attempt",
    "Cancelled",
    "Client",
    "ConfigurationError",
    "Failure",
    "InterlockError",
    "JournalEvent",
    "NotJson",
    "OutcomeUnknown",
    "Progress",
    "Retry",
    "Retryable",
    "SpoolError",
    "SpoolLocked",
    "Submission",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskError",
    "TaskFailed",
    "TaskHandle",
    "TaskLog",
    "TaskProducer",
    "TaskWorker",
    "UnknownOutcome",
    "Unreachable",
    "__version__",
]
