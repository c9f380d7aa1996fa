"""Waiting for a task's end: ask the host that can hold a long request; where none can, poll with growing intervals.

Wait decides how long to ask and to pause, whoever does the asking; StreamHost knows where to ask.
"""

from __future__ import annotations

import logging
import time

from interlock.backoff import growing_delay, jittered
from interlock.client import Client
from interlock.errors import ApiError, Unreachable
from interlock.reading import task_path
from interlock.settings import same_security
from interlock.tasks import Task

log = logging.getLogger("interlock")

LONGEST_HELD = 20.0
"""Seconds that one request may wait at the service."""

ASK_STREAM_AGAIN = 60.0
ASK_CONFIG_AGAIN = 600.0
"""Seconds after which a host that failed, or the service's configuration, is asked again."""


class Wait:
    """One wait: `held` before each look, `take` or `miss` after it, then a pause of `pause` seconds.

    Outages shorter than the caller's patience are not the caller's business: only a refusal that no time cures is raised.
    """

    def __init__(self, task_id: str, timeout: float | None) -> None:
        self._task_id = task_id
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._polls = 0
        self._asked = 0.0
        self._status = "not yet seen"

    def held(self, longest: float = LONGEST_HELD) -> float:
        """Seconds that the next look may be held at the service."""
        self._asked = time.monotonic()
        return max(0.0, min(self.left(), longest))

    def left(self) -> float:
        """Seconds until the caller's patience ends."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def take(self, task: Task) -> bool:
        """Whether the task that was read ends the wait."""
        self._status = task.status
        return task.ended

    def miss(self, error: ApiError | Unreachable) -> None:
        """Take note of a look that failed; raises a refusal that repeating cannot cure."""
        if isinstance(error, ApiError):
            if not error.retryable:
                raise error
            self._status = f"not told ({error.code})"
        else:
            self._status = "out of reach"
        log.warning("waiting for task %s: %s", self._task_id, error)

    def pause(self) -> float:
        """Seconds until the next look. Raises TimeoutError when the time is over."""
        left = self.left()
        if left <= 0:
            raise TimeoutError(f"task {self._task_id} is {self._status} after {self._timeout} s of waiting")
        if time.monotonic() - self._asked >= 1.0:  # The host held the request: ask again at once.
            return 0.0
        self._polls += 1
        return max(0.0, min(jittered(growing_delay(self._polls - 1, 0.05, 2.0, 1.5)), left))


class StreamHost:
    """The stream's host, as the service tells it: it can hold long requests, where it does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: tuple[str | None, float] = (None, 0.0)  # and until when that is believed

    def find(self) -> str | None:
        """Its URL; None where there is none, or the key must not travel there."""
        found, until = self._found
        if time.monotonic() < until:
            return found
        try:
            told = self._client.request("GET", "/v1/config", timeout=10).get("streamUrl")
        except (ApiError, Unreachable):
            return None
        found = told.rstrip("/") if isinstance(told, str) and told and same_security(self._client.url, told) else None
        self._found = (found, time.monotonic() + ASK_CONFIG_AGAIN)
        return found

    def forget(self) -> None:
        """Do without it for a while."""
        self._found = (None, time.monotonic() + ASK_STREAM_AGAIN)

    def look(self, task_id: str, seconds: float, patience: float) -> Task:
        """The task, asked of a host that may hold the answer for so many seconds; all within `patience` seconds."""
        params = {"waitSeconds": round(seconds, 1)} if seconds >= 0.1 else None
        # A held request takes its time, however short the bound of other calls is.
        bound = min(max(self._client.timeout, seconds + 5), patience + 5)
        host = self.find()
        if host is not None and host != self._client.url:
            try:
                # One try only: the stream's host may not serve waits, or be down, and the service itself knows the truth.
                answer = self._client.request(
                    "GET", task_path(task_id), params=params, url=host, timeout=seconds + 5, repeatable=False, stop=lambda: True
                )
                return Task.read(answer)
            except (ApiError, Unreachable) as error:
                log.debug("the stream's host does not answer waits: %s", error)
                self.forget()
        return Task.read(self._client.request("GET", task_path(task_id), params=params, timeout=bound))
