"""Threads that carry blocking calls for an event loop: made when needed, gone when idle, and never in a program's way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")

IDLE = 20.0
"""Seconds after which a thread without a call ends."""


class CallThreads:
    """At most `limit` daemon threads: a call that hangs keeps no program from ending. Safe after fork."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Make the call as soon as a thread is free."""
        if self._pid != os.getpid():  # a child process has none of its parent's threads
            self._reset()
        future: Future[Result] = Future()
        with self._changed:
            self._queue.append((future, call))
            if self._idle >= len(self._queue):
                self._changed.notify()
            elif self._count < self._limit:
                try:
                    threading.Thread(target=self._work, name="interlock-call", daemon=True).start()
                except RuntimeError:  # The machine has no more threads: one of those that are there takes it.
                    if not self._count:
                        self._queue.pop()
                        raise
                else:
                    self._count += 1
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._idle += 1
                    told = self._changed.wait(IDLE)
                    self._idle -= 1
                    if not (told or self._queue):
                        self._count -= 1
                        return
                future, call = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # it is the caller's, whatever it is
                    future.set_exception(error)
            del future, call  # an idle thread keeps nothing alive

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._count = 0
        self._idle = 0


async def run_in(threads: CallThreads, call: Callable[[], Result]) -> Result:
    """Make the call in one of the threads, and give what it gives. One that is cancelled before a thread took it is not made."""

    def caught() -> tuple[bool, Any]:
        # As a value: a loop's future does not carry every exception (StopIteration), and wraps some.
        try:
            return True, call()
        except BaseException as error:
            return False, error

    done, found = await asyncio.wrap_future(threads.submit(caught))
    if done:
        result: Result = found
        return result
    raise found
