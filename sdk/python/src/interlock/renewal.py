"""Keeping leases: one thread renews every held attempt, another watches the clock. No handler can stand in their way.

Renewal.watch → beat about every third of a lease, and a second after news → one heartbeat for all attempts
Watch         → a lease in doubt, a deadline that passed
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from interlock import clock
from interlock.answers import problem_error, read_verdicts
from interlock.attempt import Attempt
from interlock.backoff import jittered
from interlock.client import Client
from interlock.errors import ApiError, InterlockError
from interlock.json_text import encode
from interlock.ledger import BATCH_BYTES, BATCH_ITEMS, Ledger

if TYPE_CHECKING:
    from interlock.exchange import Identity

log = logging.getLogger("interlock")

NEWS_EVERY = 1.0
"""Seconds between heartbeats that only carry progress and log lines."""

BEAT_GAP = 0.12
"""Seconds between two notes of one attempt that the service takes."""


class Renewal:
    """Renews what the ledger holds. `on_drain` is called when the service asks this worker to drain."""

    def __init__(self, client: Client, ledger: Ledger, identity: Identity, *, on_drain: Callable[[], None]) -> None:
        self._client = client
        self._ledger = ledger
        self._identity = identity
        self._on_drain = on_drain
        self._changed = threading.Condition(threading.Lock())
        self._beat_at = float("inf")
        self._news_at = float("inf")
        self._sent_news_at = 0.0
        self._watch_at = float("inf")
        self._closed = False
        self._watch_changed = threading.Condition(threading.Lock())
        self._threads = [
            threading.Thread(target=self._run, name="interlock-renewal", daemon=True),
            threading.Thread(target=self._watch, name="interlock-watch", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """End the threads; waits so many seconds at most for a heartbeat that is on its way."""
        for condition in (self._changed, self._watch_changed):
            with condition:
                self._closed = True
                condition.notify_all()
        end = clock.now() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - clock.now()))

    def watch(self, attempts: Sequence[Attempt]) -> None:
        """Renew these from now on."""
        now = clock.now()
        beat_at = now + min(attempt.lease_seconds for attempt in attempts) / 3
        if beat_at < self._beat_at:
            with self._changed:
                if beat_at < self._beat_at:
                    self._beat_at = beat_at
                    self._changed.notify()
        self._look_at(min(next_look(attempt, now) for attempt in attempts))

    def tell_news(self) -> None:
        """A handler told something: send it soon, but not each by itself."""
        if self._news_at == float("inf"):
            with self._changed:
                self._news_at = max(clock.now() + 0.1, self._sent_news_at + NEWS_EVERY)
                self._changed.notify()

    def beat_now(self) -> None:
        """Ask the service at once how the held attempts stand."""
        with self._changed:
            self._beat_at = 0.0
            self._changed.notify()

    def flush(self, attempts: Sequence[Attempt]) -> None:
        """Send what is left of the notes of attempts that are about to be reported."""
        for _ in range(10):
            told = [attempt for attempt in attempts if attempt.notes is not None and attempt.notes.waiting]
            if not told:
                return
            pause = max(attempt.notes.sent_at + BEAT_GAP - clock.now() for attempt in told if attempt.notes is not None)
            if pause > 0:
                time.sleep(pause)
            try:
                for batch in in_batches(told):
                    self._beat(batch, 10.0)
            except InterlockError as error:
                log.warning("progress and log lines of %d attempts are not stored: %s", len(told), error)
                return

    # ---- the renewal thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    wait = min(self._beat_at, self._news_at) - clock.now()
                    if wait <= 0:
                        break
                    self._changed.wait(min(wait, 3600.0))
                if self._closed:
                    return
                now = clock.now()
                full = now >= self._beat_at
                self._beat_at = float("inf") if full else self._beat_at
                self._news_at = float("inf")
                self._sent_news_at = now
            try:
                self._renew(full)
            except Exception:  # Whatever it was: leases that nobody renews are work done twice.
                log.exception("renewing failed unexpectedly; it goes on")
                self._schedule(clock.now() + 1.0)

    def _renew(self, full: bool) -> None:
        with self._ledger.changed:
            held = list(self._ledger.held.values())
        if not held and not full:
            return
        lease = min((attempt.lease_seconds for attempt in held), default=60.0)
        chosen = held if full else [attempt for attempt in held if attempt.notes is not None and attempt.notes.waiting]
        begun = clock.now()
        failed = False
        for batch in in_batches(chosen) or ([[]] if full else []):
            try:
                self._beat(batch, max(1.0, min(lease / 3, 15.0)))
            except InterlockError as error:
                failed = True
                log.log(logging.WARNING if batch else logging.DEBUG, "%d leases are not renewed: %s", len(batch), error)
        if held and (full or failed):
            # After a failure sooner, but never hotter than the service can bear.
            self._schedule(begun + (max(0.3, min(lease / 10, 5.0)) if failed else jittered(lease / 3, 0.1)))
        if any(attempt.notes is not None and attempt.notes.waiting for attempt in held):
            self.tell_news()

    def _schedule(self, beat_at: float) -> None:
        with self._changed:
            self._beat_at = min(self._beat_at, beat_at)

    def _beat(self, attempts: Sequence[Attempt], timeout: float) -> None:
        """One heartbeat. Raises InterlockError when nothing was renewed."""
        marks: dict[str, tuple[int, int]] = {}
        items: list[bytes] = []
        for attempt in attempts:
            notes = attempt.notes.take() if attempt.notes is not None else None
            if attempt.notes is not None and notes is not None:
                marks[attempt.id] = notes[1]
                attempt.notes.sent_at = clock.now()
            items.append(attempt.ids + (notes[0] if notes is not None else b"") + b"}")
        head = encode(
            {
                "workerId": self._identity.worker_id,
                "instanceId": self._identity.instance_id,
                "draining": self._ledger.draining,
                "slots": self._ledger.max_concurrent,
            }
        )[:-1]
        sent_at = clock.now()

        def note_sending() -> None:
            nonlocal sent_at
            sent_at = clock.now()

        body = head + b',"attempts":[' + b",".join(items) + b"]}"
        answer = self._client.request(
            "POST", "/v1/attempts/heartbeat", content=body, timeout=timeout, on_send=note_sending, stop=lambda: self._closed
        )
        verdicts = read_verdicts(answer, "attempts", [attempt.id for attempt in attempts])
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            if verdict is not None:
                self._judge(attempt, verdict, sent_at, marks.get(attempt.id))
        if answer.get("drain"):
            self._on_drain()

    def _judge(self, attempt: Attempt, verdict: Mapping[str, Any], sent_at: float, mark: tuple[int, int] | None) -> None:
        problem = verdict.get("error")
        if problem is None:
            attempt.renewed_at = sent_at
            attempt.doubted = False
            if mark is not None and attempt.notes is not None:
                attempt.notes.settle(mark)
            if verdict.get("stop") in ("cancel", "timeout") and attempt.stop(verdict["stop"]):
                log.info("task %s is to stop: %s", attempt.task_id, verdict["stop"])
            return
        error = problem_error(problem if isinstance(problem, Mapping) else {})
        if error.code == "RATE_LIMITED":  # The lease is renewed; only the notes have to wait.
            attempt.renewed_at = sent_at
            attempt.doubted = False
            return
        if error.code not in ("STALE_ATTEMPT", "EPOCH_CHANGED"):
            if not error.retryable and mark is not None and attempt.notes is not None:
                attempt.notes.settle(mark)  # Notes that the service refuses must not stand in the way of renewals.
            log.warning("the lease of task %s is not renewed: %s", attempt.task_id, error)
            self._schedule(clock.now() + max(0.3, min(attempt.lease_seconds / 10, 5.0)))
            return
        # A report that is on its way may have ended the attempt: only its own answer says what became of it.
        if not attempt.sent and error.code == "STALE_ATTEMPT" and attempt.stop("stale"):
            log.warning("task %s is no longer ours: its lease went to another, or it was settled", attempt.task_id)

    # ---- the watch thread

    def _look_at(self, at: float) -> None:
        if at < self._watch_at:
            with self._watch_changed:
                if at < self._watch_at:
                    self._watch_at = at
                    self._watch_changed.notify()

    def _watch(self) -> None:
        while True:
            with self._watch_changed:
                while not self._closed and (wait := self._watch_at - clock.now()) > 0:
                    self._watch_changed.wait(min(wait, 3600.0))
                if self._closed:
                    return
                self._watch_at = float("inf")
            try:
                self._look()
            except Exception:
                log.exception("watching leases failed unexpectedly; it goes on")
                self._look_at(clock.now() + 1.0)

    def _look(self) -> None:
        now = clock.now()
        with self._ledger.changed:
            running = list(self._ledger.running.values())
        for attempt in running:
            if attempt.deadline is not None and now >= attempt.deadline:
                # The service's word is asked first; without it, our clock decides, a little late rather than early.
                if now >= attempt.deadline + grace(attempt):
                    attempt.stop("timeout")
                else:
                    self.beat_now()
            if now >= attempt.renewed_at + attempt.lease_seconds and not attempt.doubted:
                attempt.doubted = True
                log.warning("the lease of task %s is in doubt: not renewed for %.0f s", attempt.task_id, attempt.lease_seconds)
                if attempt.handler.cancels_in_doubt:
                    attempt.stop("lease-doubt")
            self._look_at(next_look(attempt, now))


def next_look(attempt: Attempt, now: float) -> float:
    """When the clock next has something to say about the attempt."""
    instants = [attempt.renewed_at + attempt.lease_seconds]
    if attempt.deadline is not None:
        instants += [attempt.deadline, attempt.deadline + grace(attempt)]
    return min((at for at in instants if at > now), default=now + attempt.lease_seconds)


def grace(attempt: Attempt) -> float:
    """Seconds behind the deadline after which our own clock is believed."""
    return 1.0 + 0.001 * attempt.lease_seconds


def in_batches(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """The attempts in heartbeats of a size that the service takes."""
    batches: list[list[Attempt]] = []
    size = 0
    for attempt in attempts:
        notes = attempt.notes.take() if attempt.notes is not None else None
        weight = len(attempt.ids) + (len(notes[0]) if notes is not None else 0) + 2
        if not batches or len(batches[-1]) >= BATCH_ITEMS or size + weight > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(attempt)
        size += weight
    return batches


__all__ = ["NEWS_EVERY", "ApiError", "Renewal"]
