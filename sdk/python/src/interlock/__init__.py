"""Interlock: submit durable tasks, run them anywhere.

    producer = TaskProducer();  producer.submit("demo/hello", 1, {"name": "Ada"}).result(timeout=60)
    worker = TaskWorker(worker_id="hello");  @worker.handle("demo/hello", 1, effect_safety="pure")

To read: `producer` and `tasks` for who submits, `waiting` and `watching` for who wants to know, `operator` for who is in
charge, `async_producer` and `async_operator` for event loops (`awaiting` makes their calls of the sync ones), `contract` for
typed tasks; `worker`, then `ledger` (what it holds), `exchange` (claim and report), `running` (handlers; `isolation` those in
processes), `renewal` (leases), `stream` (hints), `spool` (outcomes on disk) for who runs; `client` below all. Of durable
runs: `context` (what a handler calls), `run` (names, and the one way out), `steps`, `waits`, `children`, `handling` (around
the handler), `port` (what a run asks of the service); `testing` for tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from interlock.version import VERSION

__version__ = VERSION

__all__ = [
    "ApiError",
    "AsyncKeys",
    "AsyncOperator",
    "AsyncSchedules",
    "AsyncTaskHandle",
    "AsyncTaskProducer",
    "AsyncWatch",
    "Attempt",
    "AuditEntry",
    "BulkDone",
    "Cancelled",
    "CannotTell",
    "Child",
    "ChildFailed",
    "Client",
    "ClientOptions",
    "ConfigurationError",
    "DidNotHappen",
    "Failure",
    "GatherFailed",
    "Happened",
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
    "RerunOptions",
    "Retry",
    "Retryable",
    "RunError",
    "Schedule",
    "ScheduleOptions",
    "Schedules",
    "SentSignal",
    "SpoolError",
    "SpoolLocked",
    "StepFailed",
    "Submission",
    "SubmitOptions",
    "SubmitRate",
    "Task",
    "TaskCancelled",
    "TaskChild",
    "TaskContext",
    "TaskContract",
    "TaskError",
    "TaskFailed",
    "TaskFilter",
    "TaskHandle",
    "TaskLog",
    "TaskProducer",
    "TaskStep",
    "TaskTypeInfo",
    "TaskWorker",
    "UnknownOutcome",
    "Unreachable",
    "WaitTimeout",
    "Watch",
    "WorkerInfo",
    "WorkerInstance",
    "__version__",
    "task",
]

if TYPE_CHECKING:
    from interlock.async_operator import AsyncKeys, AsyncOperator
    from interlock.async_producer import AsyncSchedules, AsyncTaskHandle, AsyncTaskProducer, AsyncWatch
    from interlock.children import Child
    from interlock.client import Client, ClientOptions
    from interlock.context import TaskContext, TaskLog
    from interlock.contract import TaskContract, task
    from interlock.errors import (
        ApiError,
        Cancelled,
        ChildFailed,
        ConfigurationError,
        GatherFailed,
        InterlockError,
        NotJson,
        NotValid,
        OutcomeUnknown,
        Retryable,
        RunError,
        SpoolError,
        SpoolLocked,
        StepFailed,
        TaskCancelled,
        TaskError,
        TaskFailed,
        UnknownOutcome,
        Unreachable,
        WaitTimeout,
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
    from interlock.reconciling import CannotTell, DidNotHappen, Happened
    from interlock.recorded import SentSignal, TaskChild, TaskStep
    from interlock.retry import Retry
    from interlock.schedules import Schedule, ScheduleOptions, Schedules
    from interlock.submission import RerunOptions, Submission, SubmitOptions
    from interlock.tasks import Attempt, Failure, JournalEvent, Progress, Task
    from interlock.watching import Watch
    from interlock.worker import TaskWorker
else:
    # A program imports what it uses, and no more: a producer has no need of asyncio, a command line none of a worker.
    # Hidden from type checkers, which would take any name for one of ours.
    _NAMES = {
        "async_operator": ("AsyncKeys", "AsyncOperator"),
        "async_producer": ("AsyncSchedules", "AsyncTaskHandle", "AsyncTaskProducer", "AsyncWatch"),
        "children": ("Child",),
        "client": ("Client", "ClientOptions"),
        "context": ("TaskContext", "TaskLog"),
        "contract": ("TaskContract", "task"),
        "errors": (
            "ApiError",
            "Cancelled",
            "ChildFailed",
            "ConfigurationError",
            "GatherFailed",
            "InterlockError",
            "NotJson",
            "NotValid",
            "OutcomeUnknown",
            "Retryable",
            "RunError",
            "SpoolError",
            "SpoolLocked",
            "StepFailed",
            "TaskCancelled",
            "TaskError",
            "TaskFailed",
            "UnknownOutcome",
            "Unreachable",
            "WaitTimeout",
        ),
        "fleet": (
            "AuditEntry",
            "BulkDone",
            "HeldLimit",
            "KeyInfo",
            "Limits",
            "NewKey",
            "SubmitRate",
            "TaskTypeInfo",
            "WorkerInfo",
            "WorkerInstance",
        ),
        "keyring": ("Keys",),
        "operator": ("Operator",),
        "producer": ("TaskHandle", "TaskProducer"),
        "reading": ("TaskFilter",),
        "reconciling": ("CannotTell", "DidNotHappen", "Happened"),
        "recorded": ("SentSignal", "TaskChild", "TaskStep"),
        "retry": ("Retry",),
        "schedules": ("Schedule", "ScheduleOptions", "Schedules"),
        "submission": ("RerunOptions", "Submission", "SubmitOptions"),
        "testing": (),  # its names are its own: interlock.testing.drive
        "tasks": ("Attempt", "Failure", "JournalEvent", "Progress", "Task"),
        "watching": ("Watch",),
        "worker": ("TaskWorker",),
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> Any:
        """A public name, or a module that holds some, imported when it is first asked for (PEP 562)."""
        if name in _HOMES:
            found = getattr(import_module(f"interlock.{_HOMES[name]}"), name)
        elif name in _NAMES:
            return import_module(f"interlock.{name}")
        else:
            raise AttributeError(f"module 'interlock' has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
