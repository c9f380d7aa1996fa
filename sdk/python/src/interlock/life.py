"""One life of a worker: register, let its threads claim, run and report, and in the end drain.

start → _keep: register → begin → (registration and spool looked after) → _drain → _end
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlock import clock
from interlock.answers import as_seconds
from interlock.backoff import jittered
from interlock.client import Client
from interlock.errors import ApiError, InterlockError, Unreachable
from interlock.exchange import LONGEST_POLL, Exchange, Identity
from interlock.handler import Handler
from interlock.ledger import Ledger
from interlock.outcome import RESULT_BYTES, Release
from interlock.renewal import Renewal
from interlock.running import Runner
from interlock.spool import Spool
from interlock.starts import forget_start, note_start
from interlock.stream import Stream
from interlock.version import VERSION

log = logging.getLogger("interlock")

STOP_GRACE = 2.0
"""Seconds that a handler has to stop after it was told to, before its attempt is given back."""

FLUSH = 10.0
"""Seconds for the last reports of a drain; what is not sent by then stays in the spool."""


@dataclass(frozen=True)
class Plan:
    """What a worker was declared to be."""

    worker_id: str
    instance_id: str
    pool: str
    max_concurrent: int
    drain_timeout: float
    build: str | None
    handlers: tuple[Handler, ...]
    schedules: tuple[Mapping[str, Any], ...] = ()


class Life:
    """One run of a worker, from its registration to the end of its drain."""

    def __init__(self, plan: Plan, client: Client, spool: Spool) -> None:
        self.drain_begun = threading.Event()
        self.settled = threading.Event()  # the first registration was answered, or could not be asked
        self.ended = threading.Event()
        self._plan = plan
        self._client = client
        self._spool = spool
        self._hurry = threading.Event()
        self._turn = threading.Event()  # something for the keeper to do
        self._register_due = False
        self._told_unregistered = False
        self._unregistered = False  # it was told that the service could not be asked
        self._fault: BaseException | None = None
        self._drain_seconds = plan.drain_timeout
        self._poll_seconds = 5.0
        self._threads_run = False
        handlers = plan.handlers
        identity = Identity(plan.worker_id, plan.instance_id, plan.pool)
        self._ledger = Ledger(handlers, plan.max_concurrent)
        self._renewal = Renewal(client, self._ledger, identity, on_drain=self.begin_drain)
        threads = min(plan.max_concurrent, sum(item.max_concurrent or plan.max_concurrent for item in handlers))
        self._runner = Runner(client, threads, plan.worker_id, self._ledger.finish, self._renewal.tell_news)
        self._exchange = Exchange(
            client, self._ledger, spool, self._runner, self._renewal, identity,
            on_drain=self.begin_drain, on_return=self._ask_registration,
        )  # fmt: skip
        self._stream = Stream(
            client,
            identity,
            [f"{item.type}@{item.schema_version}" for item in handlers],
            on_config=self._read_config,
            on_ready=self._stream_ready,
            on_lost=self._stream_lost,
            on_wake=self._ledger.wake,
            on_look=self._renewal.beat_now,
        )
        self._keeper = threading.Thread(target=self._keep, name="interlock-keeper", daemon=True)

    def start(self) -> None:
        """Begin; `settled` says when the service has been asked, `check` what it refused."""
        self._keeper.start()

    def check(self) -> None:
        """Raise what ended the life, if it was a fault: a refusal with the caller's lines alone, not those of the thread that met it."""
        if isinstance(self._fault, ApiError):
            raise self._fault.with_traceback(None)
        if self._fault is not None:
            raise self._fault

    def begin_drain(self, *, hurry: bool = False, timeout: float | None = None) -> None:
        """Ask for the drain; `hurry` cuts the wait for running handlers short."""
        if timeout is not None:
            self._drain_seconds = timeout
        if hurry:
            self._hurry.set()
        self._ledger.start_draining()  # at once, whatever the keeper is at: no claim may leave after this
        self.drain_begun.set()
        self._turn.set()

    # ---- the keeper's thread

    def _keep(self) -> None:
        try:
            self._register_first()
            self._begin()
            self.settled.set()
            while not self.drain_begun.is_set():
                self._turn.wait(jittered(2.0))
                self._turn.clear()
                if self.drain_begun.is_set():
                    break
                self._check_spool()
                self._runner.nudge()
                if self._register_due:
                    self._register()
            self._drain()
        except InterlockError as error:
            self._fault = error
        except BaseException as error:
            log.exception("the worker ends because of a fault of its own")
            self._fault = error
        finally:
            self._end()
            self.settled.set()

    def _register_first(self) -> None:
        start = note_start(self._spool.folder, self._plan.instance_id)
        if start.delay:
            log.warning(
                "started %d times in a row, and never ended as it was told to: it registers in %.0f s", start.row + 1, start.delay
            )
            self.drain_begun.wait(start.delay)
        if self.drain_begun.is_set():
            return
        self._register(first=True)
        if start.before is not None:  # It held this spool, so it has ended: nobody is to count on it.
            self._sign_off(start.before, 2.0)

    def _begin(self) -> None:
        left = self._spool.load()
        if left:
            log.info("%d outcomes of an earlier run are sent first", len(left))
            self._ledger.replay(left)
        self._threads_run = True
        self._spool.sweep_in_background()
        self._renewal.start()
        self._exchange.start()
        self._stream.start()
        served = ", ".join(f"{item.type}@{item.schema_version}" for item in self._plan.handlers)
        log.info("worker %s serves %s in pool %s", self._plan.worker_id, served, self._plan.pool)

    def _check_spool(self) -> None:
        if self._ledger.obstacle is None:
            return
        try:
            self._spool.check()
        except OSError as error:
            log.error("no work is claimed: the spool %s cannot be written: %s", self._spool.folder, error)
        else:
            log.warning("the spool can be written again; work is claimed again")
            self._ledger.set_obstacle(None)

    def _register(self, *, first: bool = False) -> None:
        """Tell the service what this worker serves. A refusal at the start is raised; an outage is asked again later."""
        plan = self._plan
        body: dict[str, Any] = {
            "instanceId": plan.instance_id,
            "host": socket.gethostname(),
            "pool": plan.pool,
            "slots": plan.max_concurrent,
            "sdk": {"name": "interlock-python", "version": VERSION},
            "handlers": [handler.to_registration() for handler in plan.handlers],
        }
        if plan.build is not None:
            body["build"] = plan.build
        if plan.schedules:
            body["schedules"] = [*plan.schedules]
        self._register_due = False
        try:
            self._client.request(
                "PUT", f"/v1/workers/{plan.worker_id}", json=body, timeout=5.0 if first else 10.0, stop=self.drain_begun.is_set
            )
        except ApiError as error:
            if error.code == "WORKER_ID_CONFLICT":
                if not self._told_unregistered:
                    log.warning("the worker goes on unregistered: %s", error)
                self._told_unregistered = self._unregistered = True
            elif error.retryable:
                self._register_later(error)
            elif first:
                raise
            else:
                log.error("the registration is refused: %s", error)
                self._unregistered = True
        except Unreachable as error:
            self._register_later(error)
        else:
            if self._unregistered:
                log.warning("the worker is registered again")  # as loud as its loss was told
            self._unregistered = False
            self._told_unregistered = False

    def _register_later(self, error: InterlockError) -> None:
        log.warning("the worker is not registered yet: %s", error)
        self._unregistered = True
        self._register_due = True

    def _drain(self) -> None:
        """Claim none, let handlers end, stop the rest, report, give back, and take the instance off the list."""
        log.info("draining: %d handlers run", len(self._ledger.running))
        self._renewal.beat_now()
        end = clock.now() + self._drain_seconds
        while clock.now() < end and not self._hurry.is_set():
            if self._ledger.wait_until_idle(min(end, clock.now() + 0.1)):
                break
        running = list(self._ledger.running.values())
        for attempt in running:
            attempt.stop("drain")
        if running:
            self._ledger.wait_until_idle(clock.now() + STOP_GRACE)
        still = [attempt for attempt in list(self._ledger.running.values()) if self._ledger.give_back(attempt)]
        for attempt in still:
            log.warning("task %s is given back: its handler did not stop", attempt.task_id)
        self._ledger.release([Release(attempt, "drain") for attempt in still])
        flush_end = clock.now() + FLUSH
        sent = self._ledger.wait_until_sent(min(flush_end, clock.now() + 3.0))
        if not sent:
            for claim in self._ledger.open_claims():
                self._exchange.give_back_claim(claim, max(0.5, flush_end - clock.now()))
            sent = self._ledger.wait_until_sent(flush_end)
        left = len(self._ledger.ready)
        if left:
            log.warning("%d outcomes are not sent; they stay in %s for the next start", left, self._spool.folder)
        # No heartbeat may follow the goodbye: the instance would be on the list again.
        self._renewal.close(3.0 if sent else 0.5)
        self._sign_off(self._plan.instance_id, 3.0 if sent else 0.5)
        forget_start(self._spool.folder)

    def _sign_off(self, instance_id: str, timeout: float) -> None:
        try:
            self._client.request("DELETE", f"/v1/workers/{self._plan.worker_id}/instances/{instance_id}", timeout=timeout)
        except InterlockError as error:
            log.info("the instance %s is not signed off: %s", instance_id, error)

    def _end(self) -> None:
        self._ledger.start_draining()
        self._ledger.close()
        if self._threads_run:
            self._stream.close()
            self._renewal.close()
            self._exchange.join(5.0)
        self._runner.close()
        self._client.close()
        self._spool.close()
        self.ended.set()
        log.info("worker %s has ended", self._plan.worker_id)

    # ---- hints

    def _ask_registration(self) -> None:
        self._register_due = True
        self._turn.set()

    def _read_config(self, config: Mapping[str, Any]) -> None:
        limits = config.get("limits")
        told = limits.get("valueBytes") if isinstance(limits, Mapping) else None
        self._runner.result_bytes = told if isinstance(told, int) else RESULT_BYTES
        self._poll_seconds = max(0.2, as_seconds(config.get("pollSeconds"), 5.0))
        if not config.get("streamUrl"):
            self._exchange.longest_poll = LONGEST_POLL
        elif not self._stream.connected:
            self._poll_often()

    def _poll_often(self) -> None:
        """The service counts on a stream that is not there: until it is, polling has to find the work."""
        self._exchange.longest_poll = self._poll_seconds
        self._ledger.riding.hinted = False
        self._ledger.claim_within(self._poll_seconds)

    def _stream_ready(self) -> None:
        self._exchange.longest_poll = LONGEST_POLL
        self._ledger.riding.hinted = True
        self._ledger.wake()

    def _stream_lost(self) -> None:
        self._poll_often()
        self._ledger.wake()
        self._ask_registration()
