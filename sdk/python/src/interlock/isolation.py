"""Handlers in processes of their own: native code that never lets go, a hard end when stopped, a crash that costs one attempt.

Children.run blocks a handler thread of the worker while a child runs the handler; children are kept for the next attempt.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from interlock.attempt import Attempt
from interlock.client import Client
from interlock.forking import leave_to_parent
from interlock.handler import Handler
from interlock.http_port import HttpPort
from interlock.isolated import CHILD, Ended, Job, Stop, main
from interlock.outcome import Outcome, Release, conclude_stopped, report, write_error
from interlock.relay import answer_call
from interlock.threads import CallThreads

log = logging.getLogger("interlock")

KILL_AFTER = 5.0
"""Seconds that a handler has to stop by itself when it is asked to; then its process is killed."""

CALL_THREADS = 32
"""Threads for the calls that the runs of all children make."""


def check_isolated(handler: Handler) -> None:
    """Raises ValueError for a handler that no other process can find."""
    try:
        pickle.dumps(handler)
    except Exception as error:
        raise ValueError(
            f"the handler of {handler.type} cannot run in a process of its own: it, its contract and the exceptions of its "
            f"retry must be at the top of a module that can be imported ({error})"
        ) from None


class ChildProcess:
    """One child, and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may deadlock
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=main, args=(theirs,), name=CHILD
        )  # no daemon, which could not have children of its own
        self.process.start()
        theirs.close()
        self.begun = False  # the handler was called
        self.jobs = 0
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a job, or a reason to stop; nothing happens if the child is gone."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self.pipe.send(message)

    def kill(self) -> None:
        """End it now."""
        self.process.kill()

    def close(self) -> int | None:
        """End it, and free what it held; its exit code."""
        self.process.kill()
        self.process.join(10.0)
        code = self.process.exitcode
        # Not under a send: its file's number could be another's by the time it writes on.
        if self._lock.acquire(timeout=10.0):
            self.pipe.close()
            self._lock.release()
        return code


class Children:
    """The children of one worker: as many as run at once, no more."""

    def __init__(self, client: Client, worker_id: str, news: Callable[[], None]) -> None:
        self._client = client
        self._calls = CallThreads(CALL_THREADS)
        self._worker_id = worker_id
        self._news = news
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        _open.add(self)
        leave_to_parent(self)

    def run(self, attempt: Attempt, result_bytes: int) -> Outcome | Release:
        """Run the attempt in a child and say how it ended."""
        try:
            child = self._take()
        except OSError as error:
            return report(attempt, "retryable", write_error("PROCESS_NOT_STARTED", f"no process could be started: {error}"))
        claim = {name: value for name, value in attempt.claim.items() if name != "leaseToken"}
        end = threading.Timer(KILL_AFTER, child.kill)
        end.daemon = True
        over = threading.Lock()  # taken for good when the attempt has ended: from then on the child may serve another

        def stop() -> None:
            if not over.acquire(blocking=False):
                return
            try:
                end.start()
                # Beside this thread, which renews every lease: a process that is frozen reads nothing, and its pipe may be full.
                message = Stop(number, attempt.stop_reason or "cancel")
                threading.Thread(target=child.send, args=(message,), name="interlock-stop", daemon=True).start()
            except RuntimeError:  # no thread can be started
                child.kill()
            finally:
                over.release()

        child.begun = False
        child.jobs = number = child.jobs + 1
        child.send(Job(pickle.dumps(attempt.handler), claim, attempt.deadline, self._worker_id, result_bytes, number))
        attempt.on_stop(stop)
        try:
            ended = self._hear(attempt, child)
            over.acquire()
            end.cancel()
            self._give_back(child)
        except Exception as error:  # mostly the end of the pipe; whatever it was, this child is not used again
            log.debug("the process of task %s: %r", attempt.task_id, error)
            over.acquire()
            end.cancel()
            return self._conclude_death(attempt, child)
        if ended.failure is not None:
            log.warning("task %s (%s) %s:\n%s", attempt.task_id, attempt.handler.type, ended.status, ended.failure)
        return Release(attempt, ended.status) if ended.fields is None else rebuild(attempt, ended.status, ended.fields)

    def forget_parent(self) -> None:
        """In a forked child: the processes are the parent's; it must not end them, nor keep their pipes open."""
        children, self._all, self._idle = list(self._all), set(), []
        for child in children:
            child.pipe.close()

    def close(self) -> None:
        """End every child. Attempts that still run there have been given back."""
        with self._lock:
            self._closed = True
            children, self._idle = list(self._all), []
        for child in children:
            child.kill()
        for child in children:
            child.process.join(10.0)

    def _hear(self, attempt: Attempt, child: ChildProcess) -> Ended:
        notes = attempt.take_notes()
        port = HttpPort(self._client, attempt)
        while True:
            kind, *told = child.pipe.recv()
            if kind == "begun":
                child.begun = True
                continue
            if kind == "ended":
                ended: Ended = told[0]
                return ended
            if kind == "call":
                # Beside this thread: a call that an outage holds up must keep nothing else that the child tells.
                self._calls.submit(partial(relay_call, port, child, *told))
                continue
            if kind == "progress":
                notes.set_progress(*told)
            else:
                notes.add_line(*told)
            self._news()

    def _conclude_death(self, attempt: Attempt, child: ChildProcess) -> Outcome | Release:
        with self._lock:
            self._all.discard(child)
        code = child.close()
        if attempt.stop_reason is not None:
            return conclude_stopped(attempt, asyncio.CancelledError())
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        text = f"the process of the handler {how}"
        log.error("task %s (%s): %s", attempt.task_id, attempt.handler.type, text)
        if child.begun and attempt.handler.reconcile is not None:
            return Release(attempt, text)  # the next attempt asks the hook first
        status = "unknown" if child.begun and attempt.handler.effect_safety == "non-idempotent" else "retryable"
        return report(attempt, status, write_error("PROCESS_DIED", text, {"exitCode": code}))

    def _take(self) -> ChildProcess:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.is_alive():
                    return child
                self._all.discard(child)
                child.close()
        child = ChildProcess()
        with self._lock:
            self._all.add(child)
            closed = self._closed
        if closed:
            child.kill()
        return child

    def _give_back(self, child: ChildProcess) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)


def relay_call(port: HttpPort, child: ChildProcess, number: int, name: str, argument: Any) -> None:
    """Make a call for a child and tell it the answer."""
    child.send(answer_call(port, number, name, argument))


def rebuild(attempt: Attempt, status: str, fields: bytes) -> Outcome:
    """The child's outcome under this attempt's ids."""
    return Outcome(attempt.task_id, attempt.id, attempt.ids + fields, status, attempt)


def _close_all() -> None:
    for children in list(_open):
        children.close()


_open: weakref.WeakSet[Children] = weakref.WeakSet()
# Before multiprocessing's own look at exit, which would wait for children that ignore its SIGTERM.
atexit.register(_close_all)
