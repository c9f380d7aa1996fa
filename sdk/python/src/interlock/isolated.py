"""The inside of a child process that runs handlers (`isolation="process"`); `isolation` is the other end of the pipe.

Main thread: one handler after the other. A thread beside it hears "stop", and ends the process when the worker is gone.
The lease token stays with the worker: a child knows what a handler may know.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, cast

from interlock.attempt import Attempt, InputRefused, StopReason
from interlock.context import TaskContext
from interlock.forking import end_child, leave_to_parent
from interlock.handler import Handler
from interlock.handling import call_sync
from interlock.hands import SyncHands
from interlock.json_text import clean_text
from interlock.notes import Notes, storable
from interlock.outcome import Outcome, Release, conclude_error, conclude_return, refuse_input, write_error
from interlock.relay import Answer, RelayPort
from interlock.run import Run

CHILD = "interlock-handler-process"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """One attempt to be run: its claim without the lease token."""

    handler: bytes  # pickled by itself: a module that cannot be imported costs the attempt, not the process
    claim: Mapping[str, Any]
    deadline: float | None
    worker_id: str
    result_bytes: int
    number: int  # of this process's jobs


@dataclass(frozen=True)
class Stop:
    """One job is to stop. It may come late: the process may be at another by then."""

    number: int
    reason: StopReason


@dataclass(frozen=True)
class Ended:
    """How it ended: the report's fields behind the ids, or None where the attempt is given back for `status`."""

    status: str
    fields: bytes | None
    failure: str | None = None


def is_child() -> bool:
    """Whether this process runs handlers for a worker: it imports the worker's program, and must not serve itself."""
    process = multiprocessing.current_process()
    # So do the processes that a handler starts by multiprocessing, while they import the program.
    return process.name == CHILD or bool(getattr(process, "_inheriting", False))


class Forward:
    """Stands for the notes of an attempt: what a handler tells goes to the worker."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._forked = False
        leave_to_parent(self)

    def set_progress(self, percent: float | None, message: str | None) -> None:
        """As Notes.set_progress."""
        self._send(("progress", percent, None if message is None else str(message)))

    def add_line(self, level: str, message: str, fields: Mapping[str, Any] | None) -> None:
        """As Notes.add_line."""
        self._send(("log", level, message, storable(fields) if fields else None))

    def send_begin(self) -> None:
        """Tell that the handler is called now."""
        self._send(("begun",))

    def send_call(self, message: tuple[Any, ...]) -> None:
        """Ask the worker for a call of the service."""
        self._send(message)

    def send_end(self, ended: Ended) -> None:
        """Tell the end."""
        self._send(("ended", ended))

    def forget_parent(self) -> None:
        """In a child that a handler forked: it tells nothing, and does not keep the pipe open when this process is gone."""
        self._forked = True
        self._pipe.close()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _send(self, message: tuple[Any, ...]) -> None:
        if self._forked:
            return
        with self._lock:
            self._pipe.send(message)


class Child:
    """The process. `serve` runs jobs until the worker closes the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._attempt: Attempt | None = None
        self._stopped: StopReason | None = None
        self._number = 0
        self._lock = threading.Lock()
        self._port: RelayPort | None = None

    def serve(self) -> None:
        """Run one job after the other."""
        forward = Forward(self._pipe)
        self._port = RelayPort(forward.send_call)
        threading.Thread(target=self._listen, name="interlock-listen", daemon=True).start()
        while True:
            job = self._jobs.get()
            forward.send_end(self._run(job, forward))

    def _listen(self) -> None:
        try:
            while True:
                message = self._pipe.recv()
                if isinstance(message, Answer):
                    assert self._port is not None
                    self._port.take(message)
                    continue
                with self._lock:
                    if isinstance(message, Job):
                        self._stopped, self._attempt, self._number = None, None, message.number
                        self._jobs.put(message)
                    elif message.number != self._number:
                        continue
                    elif self._attempt is not None:
                        self._attempt.stop(message.reason)
                    else:
                        self._stopped = message.reason
        except (EOFError, OSError):
            os._exit(1)  # The worker is gone: nobody is left to tell, and what runs here is no longer watched.

    def _run(self, job: Job, forward: Forward) -> Ended:
        try:
            handler: Handler = pickle.loads(job.handler)  # noqa: S301 (from our own worker)
        except Exception:
            text = "the handler cannot be imported in its process"
            return Ended("retryable", write_error("PROCESS_NOT_STARTED", text), traceback.format_exc())
        attempt = Attempt({**job.claim, "leaseToken": ""}, handler, 0.0, 0.0, "")
        attempt.deadline = job.deadline
        attempt.notes = cast("Notes", forward)
        attempt.context = TaskContext(attempt, job.worker_id, lambda: None, partial(self._open_run, job.result_bytes))
        attempt.started = True
        with self._lock:
            self._attempt = attempt
            if self._stopped is not None:
                attempt.stop(self._stopped)
        pid = os.getpid()
        failure: str | None = None
        raised: BaseException | None = None
        ended: Outcome | Release
        try:
            forward.send_begin()
            value = contextvars.copy_context().run(call_sync, attempt)
        except InputRefused as refused:
            ended = refuse_input(attempt, refused.reason)
            failure = ended.reason
        except BaseException as error:  # a handler may raise anything, SystemExit included
            raised = error
            ended = conclude_error(attempt, error)
            failure = read_traceback(error)
        else:
            ended = conclude_return(attempt, value, job.result_bytes)
            failure = ended.reason
        if os.getpid() != pid:
            end_child(raised)
        if isinstance(ended, Release):
            return Ended(ended.reason, None)
        return Ended(ended.status, ended.body[len(attempt.ids) :], failure if ended.status in ("failed", "unknown") else None)

    def _open_run(self, value_bytes: int, attempt: Attempt, owner: Any) -> Run:
        assert self._port is not None
        return Run(attempt, self._port, SyncHands(attempt), owner, value_bytes)


def read_traceback(error: BaseException) -> str:
    """The traceback as text, for the worker's log."""
    try:
        return clean_text("".join(traceback.format_exception(type(error), error, error.__traceback__)), 65_536)
    except BaseException as broken:  # an exception of the user's that cannot be looked at
        return f"{type(error).__name__} (its traceback cannot be read: {type(broken).__name__})"


def _leave_to_worker(_number: int, _frame: FrameType | None) -> None:
    pass


def main(pipe: Connection) -> None:
    """The child's program."""
    # Signals to the whole group (Ctrl-C, a service manager's SIGTERM) drain the worker; it ends its children itself.
    for number in SIGNALS:
        # A handler that does nothing, since "ignored" would be inherited: what a handler starts could not be terminated.
        signal.signal(number, _leave_to_worker)
    Child(pipe).serve()
