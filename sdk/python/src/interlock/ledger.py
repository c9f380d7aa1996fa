"""What the worker holds at this moment: slots, attempts, outcomes to be sent. Every thread of the worker meets here.

One lock; whoever changes something that another thread waits for, wakes it. An attempt is `held` from its claim until
its report is accepted (or is known to be pointless), and renewed all that time; its slot is free when its handler ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from interlock import clock
from interlock.attempt import Attempt
from interlock.handler import Handler
from interlock.outcome import Outcome, Release
from interlock.work import ClaimRequest, Riding, Work

CLAIM_SLOTS = 100
BATCH_ITEMS = 200
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of outcomes in one request; the claim and the frame around them fit into what is left of the service's 5 MiB."""

MOST_UNSENT = 5_000
"""Outcomes waiting to be sent at which no more work is claimed: the service takes none, so it needs no more."""

SLOW_CLAIM = 3.0
"""Seconds after which an unanswered claim no longer keeps the other slots from being filled."""

SAVE_AFTER = 0.3
"""Seconds after which outcomes that no lane takes are saved by themselves."""

LINGER = 0.005
"""Seconds that a finished outcome waits for others, while there is more work than slots."""


class Ledger:
    """The worker's state, shared by its threads."""

    def __init__(self, handlers: Sequence[Handler], max_concurrent: int) -> None:
        lock = threading.Lock()
        self.changed = threading.Condition(lock)
        self._unsaved = threading.Condition(lock)  # what the saver waits for, so that it is not woken for each task
        self._saver_idle = False
        self.handlers = {handler.key: handler for handler in handlers}
        self.max_concurrent = max_concurrent
        self.held: dict[str, Attempt] = {}
        self.running: dict[str, Attempt] = {}
        self.ready: deque[Outcome] = deque()
        self.releases: deque[Release] = deque()
        self.draining = False
        self.closed = False
        self.obstacle: str | None = None  # why nothing is claimed, in words, while something is wrong
        self._running_by_key = dict.fromkeys(self.handlers, 0)
        self._limited = [handler for handler in handlers if handler.max_concurrent is not None]
        self._claiming_keys: set[tuple[str, int]] = set()
        self._reserved = 0
        self._claims: dict[str, ClaimRequest] = {}  # those on their way
        self._claim_at = 0.0
        self.riding = Riding()
        self._wakes = 0
        self._busy = False  # the last claim gave all that was asked for
        self._ready_since = 0.0
        self._hold_until = 0.0
        self._lanes_waiting = 0

    # ---- for the lanes

    def next_work(self, lane: int, pending: ClaimRequest | None) -> Work | None:
        """Wait for something to carry; None when the worker is closed. `pending` is the lane's unanswered claim."""
        with self.changed:
            while True:
                if self.closed:
                    return None
                work, wait = self._choose(lane, pending, clock.now())
                if work is not None:
                    return work
                self._lanes_waiting += 1
                self.changed.wait(wait)
                self._lanes_waiting -= 1

    def next_unsaved(self) -> list[Outcome] | None:
        """Wait for outcomes that no lane takes, since the lanes hang or hold; None when the worker is closed.

        They are to be saved and put back: an outage must not keep what finished in memory alone.
        """
        with self.changed:
            while not self.closed:
                now = clock.now()
                wait = 0.0 if now < self._hold_until else self._ready_since + SAVE_AFTER - now
                unsaved = [outcome for outcome in self.ready if outcome.file is None and outcome.tries == 0][:BATCH_ITEMS]
                if unsaved and wait <= 0:
                    taken = {id(outcome) for outcome in unsaved}
                    self.ready = deque(outcome for outcome in self.ready if id(outcome) not in taken)
                    return unsaved
                self._saver_idle = not unsaved
                self._unsaved.wait(wait if unsaved else None)
            return None

    def _choose(self, lane: int, pending: ClaimRequest | None, now: float) -> tuple[Work | None, float]:
        """What to carry now, or how long nothing is to be carried unless something changes."""
        if now < self._hold_until:
            return None, self._hold_until - now
        if self.releases:
            releases = [self.releases.popleft() for _ in range(min(len(self.releases), BATCH_ITEMS))]
            return Work(releases=releases), 0.0
        wait = 60.0
        due = self._count_due(now)
        if due:
            pause = self._linger(lane, due, now)
            if pause <= 0:
                # One on its way would take the same work.
                rides = pending is None and (self._busy or (not self._claims and self.riding.may(now >= self._claim_at)))
                return Work(self._take_outcomes(now), self._plan_claim(now, True) if rides else None), 0.0
            # A claim waits with them: it rides along, and must not keep this lane from them.
            return (Work(), 0.0) if pending is not None and not self._lapsed(now) else (None, min(wait, pause))
        if self.ready:
            wait = min(wait, max(0.01, min(outcome.not_before for outcome in self.ready) - now))
        if self._lapsed(now):
            return None, min(wait, 0.5)  # a renewal may have ended it by then
        if pending is not None:
            return Work(), 0.0
        # One claim at a time, unless there is known to be more, or those on their way hang.
        hang = max((claim.begun + SLOW_CLAIM - now for claim in self._claims.values()), default=0.0)
        if not self._busy and hang > 0:
            return None, min(wait, hang)
        if (claim := self._plan_claim(now, False)) is not None:
            return Work(claim=claim), 0.0
        if self._can_claim():
            wait = min(wait, max(0.01, self._claim_at - now))
        return None, wait

    def _count_due(self, now: float) -> int:
        if not self.ready or self.ready[0].not_before <= now:
            return len(self.ready)
        return sum(1 for outcome in self.ready if outcome.not_before <= now)

    def _linger(self, lane: int, due: int, now: float) -> float:
        """Seconds to wait for more outcomes: a fuller request costs the service and us less for each task."""
        if due >= CLAIM_SLOTS or not self.running or self.draining:
            return 0.0
        since = now - self._ready_since
        if lane > 0 and due < CLAIM_SLOTS // 4:
            return 0.25 - since  # The first lane takes them, unless its request hangs.
        return LINGER - since if self._busy else 0.0

    def _take_outcomes(self, now: float) -> list[Outcome]:
        taken: list[Outcome] = []
        later: list[Outcome] = []
        size = 0
        while self.ready and len(taken) < BATCH_ITEMS:
            outcome = self.ready[0]
            if outcome.not_before > now:
                later.append(self.ready.popleft())
                continue
            if taken and size + len(outcome.body) > BATCH_BYTES:
                break
            size += len(outcome.body) + 1
            taken.append(self.ready.popleft())
        self.ready.extend(later)
        for outcome in taken:
            if outcome.attempt is not None:
                outcome.attempt.sent = True
        self._ready_since = now
        return taken

    def _can_claim(self) -> bool:
        free = self.max_concurrent - len(self.running) - self._reserved
        return free > 0 and not self.draining and self.obstacle is None and len(self.ready) < MOST_UNSENT

    def _lapsed(self, now: float) -> bool:
        """Whether a lease held here has run out unrenewed, as after an outage.

        Its task may lie in the queue again. A claim would take it, and end the attempt that runs here; renewed or reported
        first, the attempt goes on as if nothing had been. Its renewal is on its way, or is tried again every few seconds.
        """
        return any(now >= held.renewed_at + held.lease_seconds and held.stop_reason != "stale" for held in self.held.values())

    def may_claim(self) -> bool:
        """Whether a claim that was planned may be sent now."""
        with self.changed:
            return not self._lapsed(clock.now())

    def _plan_claim(self, now: float, riding: bool) -> ClaimRequest | None:
        """A claim for the slots that are free, and its reservation; `riding` on a report, it costs no request."""
        if not self._can_claim() or not (riding or now >= self._claim_at) or self._lapsed(now):
            return None
        handlers: list[dict[str, Any]] = []
        keys: list[tuple[str, int]] = []
        for key, handler in self.handlers.items():
            if handler.max_concurrent is None:
                handlers.append(handler.to_claim(None))
                continue
            free = handler.max_concurrent - self._running_by_key[key]
            # While a claim that may bring this one is on its way, its slots are spoken for.
            if free > 0 and key not in self._claiming_keys:
                handlers.append(handler.to_claim(free))
                keys.append(key)
        if not handlers:
            return None
        slots = min(self.max_concurrent - len(self.running) - self._reserved, CLAIM_SLOTS)
        claim = ClaimRequest(slots, handlers, keys, self._wakes, now, riding)
        self._reserved += slots
        self._claims[claim.id] = claim
        self._claiming_keys.update(keys)
        return claim

    # ---- what came of them

    def take_claimed(
        self, claim: ClaimRequest, attempts: Sequence[Attempt], returned: Sequence[Release], more: bool, next_in: float
    ) -> bool:
        """Book an answered claim; the next one is due in `next_in` seconds. Whether its attempts are to run.

        Once the worker drains they are not: they are given back, as `returned` are in any case.
        """
        with self.changed:
            self._end_claim(claim)
            for attempt in (*attempts, *(release.attempt for release in returned)):
                self.held[attempt.id] = attempt
            self.releases.extend(returned)
            if self.draining:
                self.releases.extend(Release(attempt, "drain") for attempt in attempts)
                self.changed.notify_all()
                return False
            for attempt in attempts:
                self.running[attempt.id] = attempt
                self._running_by_key[attempt.handler.key] += 1
            self._busy = more or len(attempts) >= claim.slots
            self.riding.learn(claim, len(attempts))
            if self._busy or claim.wakes != self._wakes:
                self._claim_at = 0.0
            else:
                self._claim_at = clock.now() + next_in
            if self._lanes_waiting and (self._can_claim() or self.releases):
                self.changed.notify_all()
            return True

    def refresh(self, again: Attempt) -> bool:
        """Whether the attempt is held already (a claim was answered twice); its fresh token replaces the old one."""
        with self.changed:
            held = self.held.get(again.id)
            if held is None:
                return False
            held.ids = again.ids
            held.renewed_at = again.renewed_at
            return True

    def drop_claim(self, claim: ClaimRequest, next_in: float) -> None:
        """Book a claim that will bring nothing."""
        with self.changed:
            self._end_claim(claim)
            self._busy = False
            self._claim_at = clock.now() + next_in
            self.changed.notify_all()

    def _end_claim(self, claim: ClaimRequest) -> None:
        if self._claims.pop(claim.id, None) is None:  # given back meanwhile
            return
        self._reserved -= claim.slots
        self._claiming_keys.difference_update(claim.keys)

    def finish(self, attempt: Attempt, ended: Outcome | Release | None) -> None:
        """The handler ended: its slot is free, its outcome is to be sent (unless its lease is known to be gone)."""
        with self.changed:
            if self.running.pop(attempt.id, None) is not None:
                self._running_by_key[attempt.handler.key] -= 1
            if attempt.finished:  # Given back before it ended: the service has been told.
                return
            attempt.finished = True
            if attempt.stop_reason == "stale" or ended is None:
                self.held.pop(attempt.id, None)
            elif isinstance(ended, Outcome):
                if not self.ready:
                    self._ready_since = clock.now()
                self.ready.append(ended)
                if self._saver_idle:
                    self._saver_idle = False
                    self._unsaved.notify()
            else:
                self.releases.append(ended)
            told = (
                len(self.ready) in (1, CLAIM_SLOTS // 4, CLAIM_SLOTS) or not self.running or self.draining or bool(self.releases)
            )
            if told and (self._lanes_waiting or self.draining):
                self.changed.notify_all()

    def give_back(self, attempt: Attempt) -> bool:
        """Mark a running attempt as given back: what its handler still says is not sent. False if it has ended."""
        with self.changed:
            if attempt.finished:
                return False
            attempt.finished = True
            return True

    def release(self, releases: Iterable[Release]) -> None:
        """Attempts to be given back."""
        with self.changed:
            self.releases.extend(releases)
            self.changed.notify_all()

    def open_claims(self) -> list[ClaimRequest]:
        """The claims that are not answered yet."""
        with self.changed:
            return list(self._claims.values())

    def let_go(self, attempts: Iterable[Attempt | None]) -> None:
        """Stop renewing attempts whose report is settled."""
        with self.changed:
            for attempt in attempts:
                if attempt is not None:
                    self.held.pop(attempt.id, None)
            if self.draining:
                self.changed.notify_all()

    def put_back(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes to be sent again."""
        with self.changed:
            self.ready.extendleft(reversed(list(outcomes)))
            self.changed.notify_all()

    def replay(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes that an earlier process left."""
        with self.changed:
            self.ready.extend(outcomes)
            self.changed.notify_all()

    # ---- from the other threads

    def wake(self) -> None:
        """There may be work: claim as soon as a slot is free."""
        with self.changed:
            self._wakes += 1
            self._claim_at = 0.0
            self.changed.notify_all()

    def claim_within(self, seconds: float) -> None:
        """Claim in so many seconds at the latest."""
        with self.changed:
            self._claim_at = min(self._claim_at, clock.now() + seconds)
            self.changed.notify_all()

    def hold(self, seconds: float) -> None:
        """Send nothing for so long: the service is out of reach."""
        with self.changed:
            self._hold_until = clock.now() + seconds
            self.changed.notify_all()
            self._unsaved.notify()

    def resume(self) -> None:
        """The service answers again."""
        if self._hold_until:
            with self.changed:
                self._hold_until = 0.0
                self.changed.notify_all()

    def set_obstacle(self, reason: str | None) -> None:
        """Claim nothing while there is a reason."""
        with self.changed:
            self.obstacle = reason
            self.changed.notify_all()

    def start_draining(self) -> None:
        """Claim nothing from now on."""
        with self.changed:
            self.draining = True
            self._hold_until = 0.0
            self.changed.notify_all()

    def unsaved(self) -> list[Outcome]:
        """Outcomes that are in memory alone."""
        with self.changed:
            return [outcome for outcome in self.ready if outcome.file is None]

    def close(self) -> None:
        """Let every waiting thread end."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            self._unsaved.notify()

    def wait_until_idle(self, deadline: float) -> bool:
        """Wait until no handler runs; False if the deadline (interlock.clock) came first."""
        with self.changed:
            return self._wait_for(lambda: not self.running, deadline)

    def wait_until_sent(self, deadline: float) -> bool:
        """Wait until every outcome is settled; False if the deadline came first."""
        with self.changed:
            return self._wait_for(lambda: not (self.held or self.ready or self.releases or self._claims), deadline)

    def _wait_for(self, true: Callable[[], bool], deadline: float) -> bool:
        while not true():
            left = deadline - clock.now()
            if left <= 0:
                return False
            self.changed.wait(min(left, 0.05))
        return True
