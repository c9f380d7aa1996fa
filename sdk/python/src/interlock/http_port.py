"""A run's calls over HTTP: asked again through any outage, for as long as the attempt is to go on."""

from __future__ import annotations

import logging
from typing import Any

from interlock.answers import may_pass
from interlock.attempt import Attempt
from interlock.backoff import Backoff
from interlock.client import Client
from interlock.errors import ApiError, InterlockError, Unreachable
from interlock.json_text import decode
from interlock.port import ChildRequest, Page, PortRefused, StepReport, Stopped, StoredStep
from interlock.reading import path_of

log = logging.getLogger("interlock")

TRY_SECONDS = 15.0
LAST_TRY_SECONDS = 1.5
"""For a call that is still open when the attempt is told to stop: a result at hand is worth one more try."""


PAGE_ITEMS = 200
"""What the service gives at once: a run of many steps reads them all each time it is resumed."""


class HttpPort:
    """The calls of one attempt."""

    def __init__(self, client: Client, attempt: Attempt) -> None:
        self._client = client
        self._attempt = attempt

    def store_step(self, report: StepReport) -> StoredStep:
        """As Port.store_step."""
        return StoredStep.read(self._ask("POST", "steps", report.encode()))

    def spawn_child(self, request: ChildRequest) -> str:
        """As Port.spawn_child."""
        return str(self._ask("POST", "children", request.encode())["taskId"])

    def read_steps(self, cursor: str | None) -> Page:
        """As Port.read_steps."""
        return self._read("steps", cursor)

    def read_children(self, cursor: str | None) -> Page:
        """As Port.read_children."""
        return self._read("children", cursor)

    def _read(self, part: str, cursor: str | None) -> Page:
        answer = self._ask("GET", part, None, cursor)
        return Page(answer.get("items") or [], answer.get("nextCursor"))

    def _ask(self, method: str, part: str, fields: bytes | None, cursor: str | None = None) -> dict[str, Any]:
        attempt = self._attempt
        path = path_of("tasks", attempt.task_id, "attempts", attempt.id, part)
        backoff = Backoff(first=0.2, longest=15.0)
        faults = 0
        while True:
            if attempt.stop_reason == "stale":
                raise Stopped("stale")
            last = attempt.stop_reason is not None
            try:
                return self._send(method, path, fields, cursor, LAST_TRY_SECONDS if last else TRY_SECONDS)
            except ApiError as error:
                self._judge(error, faults)
                faults += error.status >= 500 and not error.retryable
                fault: InterlockError = error
                passing = error.retryable or error.status >= 500
                delay = backoff.next(error.retry_after) if passing else max(backoff.next(), 10.0)
            except Unreachable as error:
                fault = error
                delay = backoff.next()
            if last:
                log.warning("task %s stops before its call is answered: %s", attempt.task_id, fault)
                raise Stopped(str(attempt.stop_reason))
            log.warning("task %s: %s; asking again in %.1f s", attempt.task_id, fault, delay)
            attempt.wait_stop(delay)

    def _send(self, method: str, path: str, fields: bytes | None, cursor: str | None, seconds: float) -> dict[str, Any]:
        attempt = self._attempt
        ids = attempt.ids  # the token may have been renewed since the last try
        if fields is not None:
            content, headers = ids + fields + b"}", None
        else:
            lease = decode(ids + b"}")
            content, headers = None, {"X-Fence": str(lease["fence"]), "X-Lease-Token": str(lease["leaseToken"])}
        already = attempt.stop_reason is not None
        return self._client.request(
            method, path, content=content, params=None if fields is not None else {"cursor": cursor, "limit": PAGE_ITEMS},
            headers=headers, timeout=seconds,
            stop=lambda: attempt.stop_reason is not None and not already,
        )  # fmt: skip

    def _judge(self, error: ApiError, faults: int) -> None:
        """Returns for what may be asked again, after so many faults of the service."""
        if error.code in ("STALE_ATTEMPT", "EPOCH_CHANGED"):
            if self._attempt.stop("stale"):
                log.warning("task %s is no longer ours: %s", self._attempt.task_id, error.code)
            raise Stopped("stale")
        # A key that is refused may be replaced while we run (401); one that may not do this will never do it (403).
        if not may_pass(error, faults) and error.status != 401:
            raise PortRefused(error.code, error.status, error.detail or error.title or error.code)
