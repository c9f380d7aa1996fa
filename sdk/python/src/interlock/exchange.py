"""Finishing work and getting the next, in one round trip: the lanes between the ledger and the service.

carry → save outcomes on disk → flush their notes → complete (a claim rides along) → verdicts
      → or claim alone → or give attempts back
An unanswered claim stays with its lane, which repeats it under the same id until it is answered.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from interlock import clock
from interlock.answers import as_seconds, foreign_answer, may_pass, problem_error, read_verdicts
from interlock.attempt import Attempt
from interlock.backoff import Backoff, growing_delay, jittered
from interlock.client import Client
from interlock.errors import ApiError, InterlockError
from interlock.json_text import encode
from interlock.ledger import Ledger
from interlock.outcome import Outcome, Release
from interlock.running import Runner
from interlock.work import ClaimRequest, Work

if TYPE_CHECKING:
    from interlock.renewal import Renewal
    from interlock.spool import Spool

log = logging.getLogger("interlock")

LANES = 2
KEY_PAUSE = 30.0
"""Seconds between tries while the key is refused: only a new key helps, and nothing is lost meanwhile."""

LONGEST_POLL = 60.0
"""Seconds between claims, whatever the service says."""


@dataclass(frozen=True)
class Identity:
    """Who claims: the program, this process of it, and the pool it serves."""

    worker_id: str
    instance_id: str
    pool: str

    def claim_fields(self) -> dict[str, Any]:
        """The identity as a claim names it."""
        return {"workerId": self.worker_id, "instanceId": self.instance_id, "pool": self.pool}


class Exchange:
    """The lanes. `on_drain` is called when the service asks this worker to drain, `on_return` after an outage."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        spool: Spool,
        runner: Runner,
        renewal: Renewal,
        identity: Identity,
        *,
        on_drain: Callable[[], None],
        on_return: Callable[[], None],
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._spool = spool
        self._runner = runner
        self._renewal = renewal
        self._identity = identity
        self._on_drain = on_drain
        self._on_return = on_return
        self._backoff = Backoff(first=0.2, longest=30.0)
        self._threads: list[threading.Thread] = []
        self.longest_poll = LONGEST_POLL  # lowered while a stream that should be there is not

    def start(self) -> None:
        """Start the lanes."""
        for lane in range(LANES):
            self._threads.append(
                threading.Thread(target=self._run_lane, args=(lane,), name=f"interlock-lane-{lane}", daemon=True)
            )
        self._threads.append(threading.Thread(target=self._run_saver, name="interlock-saver", daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the lanes to end, after the ledger was closed; what they leave unsent is on disk after that."""
        end = clock.now() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - clock.now()))
        self._save(self._ledger.unsaved())

    def _run_lane(self, lane: int) -> None:
        pending: ClaimRequest | None = None
        while (work := self._ledger.next_work(lane, pending)) is not None:
            pending = work.claim or pending
            try:
                pending = self._carry(work, pending)
            except Exception:  # The lane is the worker's life line: whatever happened, it goes on.
                log.exception("sending failed unexpectedly; it is tried again")
                self._ledger.put_back(work.outcomes)
                self._ledger.release(work.releases)
                self._ledger.hold(self._backoff.next())

    def _run_saver(self) -> None:
        while (outcomes := self._ledger.next_unsaved()) is not None:
            self._save(outcomes)
            self._ledger.put_back(outcomes)

    def _carry(self, work: Work, claim: ClaimRequest | None) -> ClaimRequest | None:
        """Do the work; the claim if it is still unanswered."""
        if work.outcomes:
            work.outcomes = self._without_stale(work.outcomes)
            self._save(work.outcomes)
            self._renewal.flush([outcome.attempt for outcome in work.outcomes if outcome.attempt is not None])
        if work.releases:
            self._give_back(work.releases)
            return claim
        if claim is not None and (self._ledger.draining or self._ledger.obstacle is not None):
            # Planned before that was known; one that was sent may have leased something.
            if claim.sent_at:
                self.give_back_claim(claim)
            else:
                self._ledger.drop_claim(claim, 0.0)
            claim = None
        if claim is not None and not self._ledger.may_claim():
            if work.outcomes:
                self._complete(work.outcomes, None)
            return claim
        if work.outcomes:
            return self._complete(work.outcomes, claim)
        return self._claim(claim) if claim is not None else None

    # ---- outcomes

    def _without_stale(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Drop outcomes whose lease is known to be another's."""
        stale = [item for item in outcomes if item.attempt is not None and item.attempt.stop_reason == "stale"]
        for outcome in stale:
            self._spool.settle(outcome)
        self._ledger.let_go([outcome.attempt for outcome in stale])
        return [item for item in outcomes if item not in stale] if stale else outcomes

    def _save(self, outcomes: Sequence[Outcome]) -> None:
        try:
            self._spool.save(outcomes)
        except OSError as error:
            for outcome in outcomes:
                outcome.tries += 1
            if self._ledger.obstacle is None:
                log.error(
                    "outcomes cannot be saved in %s: %s. They are sent directly, and NO MORE WORK IS CLAIMED until there is room",
                    self._spool.folder, error,
                )  # fmt: skip
                self._ledger.set_obstacle(f"the spool cannot be written: {error}")

    def _complete(self, outcomes: list[Outcome], claim: ClaimRequest | None) -> ClaimRequest | None:
        body = b'{"completions":[' + b",".join(outcome.body for outcome in outcomes) + b"]"
        if claim is not None:
            body += b',"claim":' + self._encode_claim(claim)
        try:
            answer = self._send("/v1/attempts/complete", body + b"}", claim)
        except InterlockError as error:
            return self._completion_failed(outcomes, claim, error)
        self._succeeded()
        told = answer.get("claim")
        if claim is not None and is_claimed(told):
            self._take(claim, told)  # first, so that handlers run while the files of the finished ones are removed
            claim = None
        self._judge(outcomes, read_verdicts(answer, "completions", [outcome.attempt_id for outcome in outcomes]))
        if claim is None:
            return None
        problem = told.get("error") if isinstance(told, Mapping) else None
        return self._claim_failed(claim, problem_error(problem if isinstance(problem, Mapping) else {"retryable": True}))

    def _completion_failed(
        self, outcomes: list[Outcome], claim: ClaimRequest | None, error: InterlockError
    ) -> ClaimRequest | None:
        if not isinstance(error, ApiError) or error.retryable or error.status in (401, 403):
            self._ledger.put_back(outcomes)
            self._out_of_reach(error)
            return claim
        # The request was refused as a whole. One part of it must not hold the others: without the claim, then in halves.
        log.debug("a request with %d reports was refused, and is taken apart: %s", len(outcomes), error)
        if claim is not None:
            self._abandon(claim, error)
            self._complete(outcomes, None)
        elif len(outcomes) > 1:
            middle = len(outcomes) // 2
            self._complete(outcomes[:middle], None)
            self._complete(outcomes[middle:], None)
        elif _put_off(outcomes[0], error):
            self._ledger.replay(outcomes)
        else:
            instead = self._refuse(outcomes[0], error)
            if instead is not None:
                self._ledger.put_back([instead])
        return None

    def _judge(self, outcomes: Sequence[Outcome], verdicts: Sequence[Mapping[str, Any] | None]) -> None:
        settled: list[Attempt | None] = []
        again: list[Outcome] = []
        for outcome, told in zip(outcomes, verdicts, strict=True):
            verdict = told or {"error": {"code": "UNAVAILABLE", "retryable": True, "detail": "no verdict came"}}
            problem = verdict.get("error")
            if problem is None:
                self._spool.settle(outcome)
                if outcome.status == "succeeded" and verdict.get("taskStatus") == "failed":
                    log.warning("task %s failed: the service cannot store its result; its failure says why", outcome.task_id)
            else:
                error = problem_error(problem if isinstance(problem, Mapping) else {})
                if _put_off(outcome, error):
                    again.append(outcome)
                    continue
                instead = self._refuse(outcome, error)
                if instead is not None:
                    again.append(instead)
                    continue
            settled.append(outcome.attempt)
        self._ledger.let_go(settled)
        if again:
            self._ledger.replay(again)

    def _refuse(self, outcome: Outcome, error: ApiError) -> Outcome | None:
        """What is to be sent in place of an outcome that is refused for good, if anything."""
        if error.code == "STALE_ATTEMPT":
            log.warning("the outcome of task %s came too late: the attempt %s is no longer current", outcome.task_id,
                        outcome.attempt_id)  # fmt: skip
            self._spool.settle(outcome)
        elif error.code == "EPOCH_CHANGED":
            log.error("the outcome of task %s is from before a restore of the service; it is set aside", outcome.task_id)
            self._spool.set_aside(outcome, str(error))
        elif outcome.status == "suspended" and error.code in ("INVALID_REQUEST", "LIMIT_EXCEEDED"):
            # A wait is no work that could be lost: the task says what is wrong with it, rather than run into it again.
            log.error("the wait of task %s is refused, and the task fails: %s", outcome.task_id, error)
            self._spool.settle(outcome)
            return outcome.fail(error.code, f"the wait is refused: {error.detail or error.title}")
        else:
            log.error("the outcome of task %s is refused and goes to quarantine: %s", outcome.task_id, error)
            self._spool.quarantine(outcome, str(error))
        self._ledger.let_go([outcome.attempt])
        return None

    # ---- claims

    def _encode_claim(self, claim: ClaimRequest) -> bytes:
        return encode({**self._identity.claim_fields(), "claimId": claim.id, "slots": claim.slots, "handlers": claim.handlers})

    def _claim(self, claim: ClaimRequest) -> ClaimRequest | None:
        try:
            answer = self._send("/v1/claims", self._encode_claim(claim), claim)
            if not is_claimed(answer):
                raise foreign_answer(200, {}, retryable=True)
        except InterlockError as error:
            return self._claim_failed(claim, error)
        self._succeeded()
        self._take(claim, answer)
        return None

    def _claim_failed(self, claim: ClaimRequest, error: InterlockError) -> ClaimRequest | None:
        """The claim if it is to be repeated."""
        if isinstance(error, ApiError) and not error.retryable:
            self._abandon(claim, error)
            return None
        self._out_of_reach(error)
        return claim

    def _abandon(self, claim: ClaimRequest, error: ApiError) -> None:
        """Give up a claim that is refused for good, and ask anew after a pause."""
        log.error("the claim was refused: %s", error)
        if claim.sent_at and (error.status >= 500 or error.status == 413):
            self.give_back_claim(claim)  # it may have leased what its answer could not tell
        self._ledger.drop_claim(claim, jittered(KEY_PAUSE))

    def _take(self, claim: ClaimRequest, answer: Mapping[str, Any]) -> None:
        """Start what a claim brought; give back what cannot run here."""
        received = clock.now()
        server_time = str(answer.get("serverTime") or "")
        runs: dict[str, Attempt] = {}
        returned: list[Release] = []
        for item in answer["attempts"]:
            try:
                handler = self._ledger.handlers.get((item["type"], item["schemaVersion"]))
                known = handler or next(iter(self._ledger.handlers.values()))
                attempt = Attempt(item, known, claim.sent_at, received, server_time)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # the others are to run
                log.error("a claim brought what is no attempt, and it is left to its lease: %s", type(error).__name__)
                continue
            if handler is None:
                returned.append(Release(attempt, "no such handler"))
            elif attempt.id not in runs and not self._ledger.refresh(attempt):
                runs[attempt.id] = attempt
        next_in = min(max(0.2, as_seconds(answer.get("pollAfterSeconds"), 5.0)), self.longest_poll)
        # A short interval is the time until something is due: polling before it would only ask twice.
        next_in = jittered(next_in, 0.1) if next_in >= 2 else next_in
        go = self._ledger.take_claimed(claim, list(runs.values()), returned, bool(answer.get("more")), next_in)
        if go and runs:
            self._renewal.watch(list(runs.values()))
            for attempt in runs.values():
                if attempt.claim.get("cancelRequested"):
                    attempt.stop("cancel")
            self._runner.start(list(runs.values()))
        if answer.get("drain"):
            self._on_drain()

    # ---- giving back

    def _give_back(self, releases: list[Release]) -> None:
        body = b'{"attempts":[' + b",".join(release.encode() for release in releases) + b"]}"
        try:
            answer = self._send("/v1/attempts/release", body, None)
        except InterlockError as error:
            if isinstance(error, ApiError) and not error.retryable:
                log.error("attempts cannot be given back; their leases run out by themselves: %s", error)
                self._ledger.let_go([release.attempt for release in releases])
                return
            self._ledger.release(releases)
            self._out_of_reach(error)
            return
        self._succeeded()
        again: list[Release] = []
        verdicts = read_verdicts(answer, "attempts", [release.attempt.id for release in releases])
        for release, verdict in zip(releases, verdicts, strict=True):
            problem = verdict.get("error") if verdict is not None else {"retryable": True}
            if isinstance(problem, Mapping) and problem.get("retryable") is True:
                again.append(release)
        kept = {release.attempt.id for release in again}
        self._ledger.let_go([release.attempt for release in releases if release.attempt.id not in kept])
        if again:
            self._ledger.hold(0.2)
            self._ledger.release(again)

    def give_back_claim(self, claim: ClaimRequest, timeout: float = 5.0) -> None:
        """Give back whatever an unanswered claim may have leased; after this its id never leases again."""
        body = encode({"workerId": self._identity.worker_id, "instanceId": self._identity.instance_id, "claimId": claim.id})
        with contextlib.suppress(InterlockError):
            self._client.request("POST", "/v1/attempts/release", content=body, timeout=timeout)
        self._ledger.drop_claim(claim, 0.0)

    # ---- the service's reach

    def _send(self, path: str, body: bytes, claim: ClaimRequest | None) -> dict[str, Any]:
        def note_sending() -> None:
            if claim is not None:
                claim.sent_at = clock.now()

        def is_over() -> bool:
            # A claim is not repeated while a lease held here has run out: it would take that task from its own attempt.
            return self._ledger.draining or (claim is not None and not self._ledger.may_claim())

        return self._client.request("POST", path, content=body, timeout=30.0, on_send=note_sending, stop=is_over)

    def _succeeded(self) -> None:
        returned = self._backoff.tries > 1
        self._backoff.reset()
        self._ledger.resume()
        if returned:
            log.info("the service answers again")
            self._on_return()

    def _out_of_reach(self, error: InterlockError) -> None:
        refused = isinstance(error, ApiError) and error.status in (401, 403)
        delay = jittered(KEY_PAUSE) if refused else self._backoff.next(getattr(error, "retry_after", None))
        if self._ledger.draining:
            delay = min(delay, 0.5)
        log.log(logging.ERROR if refused else logging.WARNING, "%s; asking again in %.1f s", error, delay)
        self._ledger.hold(delay)


def _put_off(outcome: Outcome, error: ApiError) -> bool:
    """Whether the outcome is to be sent again; then it knows when."""
    key_refused = error.status in (401, 403) and not error.retryable
    if not (key_refused or may_pass(error, outcome.tries)):
        return False
    outcome.tries += 1
    outcome.not_before = clock.now() + jittered(KEY_PAUSE if key_refused else growing_delay(outcome.tries, 0.1, 30.0))
    return True


def is_claimed(answer: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is the answer of a claim: one that is not is asked for again, since it may have leased something."""
    return isinstance(answer, Mapping) and isinstance(answer.get("attempts"), list)
