"""Where handlers run: sync ones in a pool of threads, async ones on one loop in a thread of its own.

Threads: wakes one thread for a batch; each woken thread wakes the next one before it starts, so that handlers that
block all run at once, and handlers that take microseconds cost no switch between threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from interlock.attempt import Attempt, InputRefused
from interlock.client import Client
from interlock.context import TaskContext
from interlock.forking import end_child, leave_to_parent
from interlock.handling import call_async, call_sync
from interlock.hands import AsyncHands, Hands, SyncHands
from interlock.http_port import HttpPort
from interlock.isolation import Children
from interlock.json_text import clean_text, has_surrogate
from interlock.outcome import Outcome, Release, conclude_error, conclude_return, refuse_input
from interlock.run import Run
from interlock.threads import CallThreads

log = logging.getLogger("interlock")

CALL_THREADS = 32
"""Threads for the blocking calls of async handlers: so many of the service, and at least so many functions of steps."""

Finish = Callable[[Attempt, "Outcome | Release | None"], None]


class Threads:
    """At most `limit` daemon threads that run sync handlers, made when they are needed."""

    def __init__(self, limit: int, run: Callable[[Attempt], None]) -> None:
        self._run = run
        self._limit = limit
        self._queue: deque[Attempt] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._count = 0
        self._idle = 0
        self._waking = False  # one thread at a time is on its way to the queue
        self._closed = False

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Run the attempts as soon as threads reach them."""
        with self._changed:
            self._queue.extend(attempts)
            self._wake_one()

    def nudge(self) -> None:
        """Try again what could not be started."""
        with self._changed:
            self._wake_one()

    def close(self) -> None:
        """Let the idle threads end; one that runs a handler ends with it, or with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake_one(self) -> None:
        if not self._queue or self._waking:
            return
        if self._idle:
            self._waking = True
            self._changed.notify()
        elif self._count < self._limit:
            # Daemons: a handler that never ends must not keep the process alive after its attempt was given back.
            thread = threading.Thread(target=self._work, name=f"interlock-handler-{self._count + 1}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # What waits is taken by a thread that comes free, or by one that a nudge can start.
                log.error("no thread can be started, %d tasks wait for one: %s", len(self._queue), error)
                return
            self._waking = True
            self._count += 1

    def _work(self) -> None:
        woken = True
        while True:
            with self._changed:
                if woken:
                    self._waking = woken = False
                while not self._queue:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    self._waking = False
                attempt = self._queue.popleft()
                self._wake_one()
            try:
                self._run(attempt)
            except BaseException:  # This thread serves the next ones too.
                with contextlib.suppress(BaseException):
                    log.exception("running task %s failed unexpectedly", attempt.task_id)


class Loop:
    """One event loop in a thread of its own, made with the first async handler."""

    def __init__(self, run: Callable[[Attempt], None]) -> None:
        self._run = run
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._waiting: list[Attempt] = []  # for a loop that could not be started
        self._lock = threading.Lock()

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Start the attempts on the loop."""
        with self._lock:
            self._waiting += attempts
        self.nudge()

    def nudge(self) -> None:
        """Start what waits. Where there is no loop and none can be started, it waits on."""
        with self._lock:
            if not self._waiting:
                return
            if self._loop is None:
                loop = None
                try:
                    loop = asyncio.new_event_loop()
                    thread = threading.Thread(target=self._turn, args=(loop,), name="interlock-loop", daemon=True)
                    thread.start()
                except (RuntimeError, OSError) as error:
                    if loop is not None:
                        loop.close()
                    log.error("no event loop can be started, %d tasks wait for it: %s", len(self._waiting), error)
                    return
                self._loop, self._thread = loop, thread
            attempts, self._waiting = self._waiting, []
            self._loop.call_soon_threadsafe(self._start_all, attempts)

    def close(self) -> None:
        """Stop the loop if no handler blocks it."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(2.0)

    def forget_parent(self) -> None:
        """In a child forked on the loop: it shares the loop's sockets, so it ends as soon as its handler waits."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or thread.ident != threading.get_ident():
            return
        ready = getattr(loop, "_ready", None)  # what other handlers were to do next; it is the parent's to do
        if isinstance(ready, deque):
            ready.clear()
        loop.call_soon(os._exit, 0)

    def _start_all(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self._run(attempt)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:  # Those that do not want to stop are left behind; their attempts have been given back.
                loop.run_until_complete(asyncio.wait(left, timeout=0.5))
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()


class Runner:
    """Runs claimed attempts and hands their endings to `finish`."""

    def __init__(self, client: Client, threads: int, worker_id: str, finish: Finish, news: Callable[[], None]) -> None:
        self._client = client
        self._worker_id = worker_id
        self._finish = finish
        self._news = news
        self._threads = Threads(threads, self._run_sync)
        self._loop = Loop(self._run_async)
        self._children = Children(client, worker_id, news)
        self._calls = CallThreads(CALL_THREADS)
        self._functions = CallThreads(max(threads, CALL_THREADS))
        self._tasks: set[asyncio.Task[None]] = set()
        self._forked = False
        self.result_bytes = 256 * 1024
        leave_to_parent(self)

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Start every attempt at once."""
        for attempt in attempts:
            attempt.context = TaskContext(attempt, self._worker_id, self._news, self._open_run)
        on_loop = [attempt for attempt in attempts if attempt.handler.is_async]
        in_threads = [attempt for attempt in attempts if not attempt.handler.is_async] if on_loop else attempts
        if in_threads:
            self._threads.start(in_threads)
        if on_loop:
            self._loop.start(on_loop)

    def nudge(self) -> None:
        """Start what was claimed and could not be started: a machine may have had no thread left."""
        self._threads.nudge()
        self._loop.nudge()

    def forget_parent(self) -> None:
        """In a forked child: whatever comes out of a handler here ends the child, and nothing else runs."""
        self._forked = True
        self._loop.forget_parent()

    def close(self) -> None:
        """End the threads that no handler holds."""
        self._threads.close()
        self._loop.close()
        self._children.close()

    def _open_run(self, attempt: Attempt, owner: Any) -> Run:
        hands: Hands = AsyncHands(self._calls, self._functions) if attempt.handler.is_async else SyncHands(attempt)
        return Run(attempt, HttpPort(self._client, attempt), hands, owner, self.result_bytes)

    def _run_sync(self, attempt: Attempt) -> None:
        if not self._begin(attempt):
            return
        if attempt.handler.isolation == "process":
            try:
                ended = self._children.run(attempt, self.result_bytes)
            except BaseException as error:  # An attempt that nobody ends would be renewed for ever.
                self._end_with(attempt, error)
            else:
                self._finish(attempt, ended)
            return
        try:
            value = contextvars.copy_context().run(call_sync, attempt)
        except InputRefused as refused:
            self._tell_and_finish(attempt, refuse_input(attempt, refused.reason))
        except BaseException as error:  # a handler may raise anything, SystemExit included
            self._end_with(attempt, error)
        else:
            self._end(attempt, value)

    def _run_async(self, attempt: Attempt) -> None:
        task = asyncio.get_running_loop().create_task(self._await(attempt))
        # The loop holds its tasks weakly: one that nobody else holds can vanish in the middle.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, attempt: Attempt) -> None:
        if not self._begin(attempt):
            return
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        attempt.on_stop(lambda: cancel_soon(loop, task))
        try:
            value = await call_async(attempt)
        except InputRefused as refused:
            self._tell_and_finish(attempt, refuse_input(attempt, refused.reason))
        except BaseException as error:  # see above; it must not end the loop of the others
            self._end_with(attempt, error)
        else:
            self._end(attempt, value)

    def _begin(self, attempt: Attempt) -> bool:
        """Whether the handler is to be called at all: not after a stop that came before it started."""
        if attempt.stop_reason is None:
            attempt.started = True
            return True
        self._end_with(attempt, asyncio.CancelledError())
        return False

    def _end(self, attempt: Attempt, value: Any) -> None:
        self._tell_and_finish(attempt, conclude_return(attempt, value, self.result_bytes))

    def _end_with(self, attempt: Attempt, error: BaseException) -> None:
        self._tell_and_finish(attempt, conclude_error(attempt, error), error)

    def _tell_and_finish(self, attempt: Attempt, ended: Outcome | Release, error: BaseException | None = None) -> None:
        if self._forked:
            end_child(error)
        try:
            if isinstance(ended, Outcome) and ended.status in ("failed", "unknown"):
                log_failure(attempt, ended, error)
        except BaseException:  # A log that cannot take it (a filter of the user's, say) must not keep the slot.
            with contextlib.suppress(BaseException):
                log.warning("task %s (%s) failed, and why cannot be logged", attempt.task_id, attempt.handler.type)
        finally:
            self._finish(attempt, ended)


def cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancel a task of a loop that runs elsewhere."""
    with contextlib.suppress(RuntimeError):  # The loop is closed: the task is over.
        loop.call_soon_threadsafe(task.cancel)


def log_failure(attempt: Attempt, ended: Outcome, error: BaseException | None) -> None:
    """Tell of a failure, a handler's own with its traceback: as text where a log file could not take it as it is."""
    if error is None:
        log.warning("task %s (%s) %s: %s", attempt.task_id, attempt.handler.type, ended.status, ended.reason)
        return
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = type(error).__name__
    if has_surrogate(told):
        log.warning(
            "task %s (%s) %s: %s\n%s", attempt.task_id, attempt.handler.type, ended.status, name, clean_text(told, 65_536)
        )
    else:
        log.warning("task %s (%s) %s: %s", attempt.task_id, attempt.handler.type, ended.status, name, exc_info=error)
