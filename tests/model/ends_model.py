"""How attempts end, and what follows an end: waits that are over, children that are asked to cancel."""

from __future__ import annotations

from collections import Counter
from typing import Any

from model.records import SETTLED, UNENDED, UNSAFE, Attempt, Refused, Signal, Step, Task, Wait

LEASE = 60  # where nobody says otherwise
WORN = 100  # releases and suspensions in a row that are not counted
ERROR = "BAD"  # the code of every error that a handler of the walks reports

End = tuple[str, str | None, bool]
"""The next status, the failure's code, and whether the attempt is counted."""


class Ends:
    """The clock, the tasks, and the ends of attempts."""

    def __init__(self) -> None:
        self.now = 0
        self.tasks: dict[str, Task] = {}
        self.met: Counter[tuple[str, str]] = Counter()  # what happened beside the answers of calls

    # by time

    def expire(self, *types: str) -> list[Task]:
        """Settles leases that ended; a claim does so for its own types. What follows is the caller's."""
        ended = []
        for task in list(self.tasks.values()):
            attempt = task.attempt
            if task.type not in types or task.status != "running" or attempt is None or attempt.lease_end > self.now:
                continue
            self._lapse(task, attempt)
            if task.status in SETTLED:
                ended.append(task)
        return ended

    def _lapse(self, task: Task, attempt: Attempt) -> None:
        why = "ATTEMPT_TIMEOUT" if self._overdue(attempt) else "LEASE_EXPIRED"
        left = task.attempts + 1 < task.max_attempts
        task.note("lease-expired")
        task.attempts += 1
        task.releases = 0
        attempt.expired = True
        task.fail(None)
        asks = left and not task.cancel_requested
        unasked = attempt.told is not None and not asks
        if unasked or task.is_open(asks) or not (attempt.safety != UNSAFE or (attempt.reconciles and asks)):
            task.move("outcome-unknown", self.now)
            task.fail(why, task.open_step())
        elif task.cancel_requested:
            task.move("cancelled", self.now)
        elif left:
            task.move("queued", self.now)
            task.due = self.now + self._backoff(task, task.attempts)
            if attempt.safety == UNSAFE:
                task.reconcile = (attempt.id, why)
        else:
            task.move("failed", self.now)
            task.fail("ATTEMPTS_EXHAUSTED")
        attempt.ended = task.status in SETTLED
        if task.status != "queued":
            task.note(task.status)
        self.met[f"expiry → {task.status}", task.code or "taken"] += 1

    def wake(self, *types: str) -> int:
        """Ends the waits whose time has come; how many."""
        late = [t for t in self.tasks.values() if t.type in types and t.wait is not None and t.wait.wake is not None]
        return sum(self.look(task) for task in late if task.wait and task.wait.wake is not None and task.wait.wake <= self.now)

    # by reports

    def report(
        self,
        task: Task,
        attempt: Attempt,
        token: int,
        said: str,
        value: Any = None,
        *,
        wait: Wait | None = None,
        step: str | None = None,
        orphans: bool = False,
    ) -> tuple[str, bool]:
        """(status that it led to, whether it is a repeat) of an outcome, or of `released`.

        `value` is what tells a repeat from another report: the result, the wait as it was sent, the seconds to the next
        attempt, whether it had started.
        """
        report = (said, value)
        started = said == "released" and bool(value)
        if attempt.report == report and attempt.tokens == token:
            return attempt.led_to, True
        try:
            self.check_current(task, attempt, token)
        except Refused:
            if said != "released" and attempt.ended and attempt.tokens == token and attempt.id not in task.late:
                task.late.add(attempt.id)
                task.note("late-report")
            raise
        if wait is not None:
            self.check_suspension(task, attempt, wait)
        self.recover(task, attempt)
        overdue = self._overdue(attempt)
        status, code, counts = self._end(task, attempt, said, started, overdue)
        worn = status in ("waiting", "queued") and not counts and task.releases >= WORN
        if worn:
            counts = True
            if task.attempts + 1 >= task.max_attempts:
                status, code = self._worn_out(task, attempt, said, started)
        if orphans:
            task.note("steps-orphaned")
        self._take(task, attempt, said, status, started)
        task.fail(code, (step if said == "unknown" else None) or task.open_step() if status == "outcome-unknown" else None)
        task.releases = task.releases + 1 if said in ("released", "suspended") and not counts else 0
        if status == "queued":
            delay = value if said == "retryable" and value is not None else self._backoff(task, task.attempts + 1)
            task.due = self.now + delay if counts and not worn else min(task.due, self.now)
        task.attempts += counts
        if wait is not None and status == "waiting":
            task.wait = wait
            self.look(task, at_once=True)
        attempt.ended, attempt.report, attempt.led_to = True, report, task.status
        if said == "succeeded":
            task.result = value
        self.follow(task)
        return attempt.led_to, False

    def _take(self, task: Task, attempt: Attempt, said: str, status: str, started: bool) -> None:
        """Status, events, and what the next attempt is told."""
        task.move(status, self.now)
        if said != "released":
            task.reconcile = attempt.told if status == "queued" else None
            task.note({"queued": "retry-scheduled", "waiting": "suspended"}.get(status, status))
            return
        if status == "queued" and started and attempt.safety == UNSAFE:
            task.reconcile = (attempt.id, "RELEASED")
        task.note("released", *([] if status == "queued" else [status]))

    def _end(self, task: Task, attempt: Attempt, said: str, started: bool, overdue: bool) -> End:
        left = task.attempts + 1 < task.max_attempts
        again: End = ("queued", None, True) if left else ("failed", "ATTEMPTS_EXHAUSTED", True)
        if not left and attempt.told is not None and said != "released":  # nobody found out what was to be found out
            again = ("outcome-unknown", ERROR if said == "retryable" else "RELEASED_UNSAFE", True)
        unsafe: End = ("outcome-unknown", "RELEASED_UNSAFE", False)
        asks = not task.cancel_requested  # where an attempt is left
        if said == "succeeded":
            return "succeeded", None, False
        if said in ("failed", "unknown"):
            return "failed" if said == "failed" else "outcome-unknown", ERROR, False
        if said == "retryable":
            if task.is_open(left and asks) or (attempt.told is not None and not asks):
                return "outcome-unknown", ERROR, True
            if task.cancel_requested:
                return "cancelled", None, True
            return again if attempt.safe else ("failed", "RETRY_NOT_SAFE", True)
        if said == "suspended":
            if task.is_open(asks):  # not counted: an attempt is left
                return unsafe
            return "cancelled" if task.cancel_requested else "waiting", None, False
        if said == "cancelled" or (overdue and (attempt.safe or not started)):
            found = self._stopped(task, attempt, overdue, again, left)
            return unsafe if found[0] == "cancelled" and said == "released" and self._asks(task, attempt, started) else found
        if started and (not attempt.safe or task.is_open(True)):
            return unsafe
        if task.cancel_requested and self._asks(task, attempt, started):
            return unsafe
        return "cancelled" if task.cancel_requested else "queued", None, False

    def _stopped(self, task: Task, attempt: Attempt, overdue: bool, again: End, left: bool) -> End:
        """`cancelled`, and a release past the deadline of what may be repeated, or had not begun."""
        unasked = not overdue and not task.cancel_requested
        if task.is_open(left and not unasked and not task.cancel_requested):  # stopped for no reason: nobody will ask any more
            return "outcome-unknown", "RELEASED_UNSAFE", False
        if task.cancel_requested:
            return "cancelled", None, False
        if unasked:
            return "failed", "CANCELLED_BY_HANDLER", False
        return again if attempt.safe else ("failed", "ATTEMPT_TIMEOUT", True)

    def _worn_out(self, task: Task, attempt: Attempt, said: str, started: bool) -> tuple[str, str]:
        """The 101st in a row was the last attempt: failed, unless somebody was still to be asked what happened."""
        if task.is_open(False) or (said == "released" and self._asks(task, attempt, started)):
            return "outcome-unknown", "RELEASED_UNSAFE"
        return "failed", "ATTEMPTS_EXHAUSTED"

    def _asks(self, task: Task, attempt: Attempt, started: bool) -> bool:
        """Whether somebody is to be asked what an attempt that is given back, or one before it, did."""
        return task.is_open(False) or attempt.told is not None or (started and attempt.safety == UNSAFE)

    def check_current(self, task: Task, attempt: Attempt, token: int) -> None:
        """Raises Refused where nothing of the attempt is believed any more."""
        if attempt.ended or attempt.tokens != token or task.attempt is not attempt or task.status not in UNENDED:
            raise Refused("STALE_ATTEMPT")

    def check_suspension(self, task: Task, attempt: Attempt, wait: Wait) -> None:
        """Raises Refused where a current attempt may not wait so: it goes on."""
        raise NotImplementedError

    def recover(self, task: Task, attempt: Attempt, *, renew: bool = False) -> None:
        """Takes an expiry back; `renew`: with a lease of its full length where it had ended."""
        if task.status != "running":
            task.move("running", self.now)
            task.fail(None)
            task.attempts -= attempt.expired
            self.met["recovery", "told" if attempt.told else "renewed" if renew else "taken"] += 1
            task.reconcile = attempt.told
            task.note("lease-recovered")
            if renew:
                attempt.lease_end = self.lease_end(task, attempt.deadline)
        attempt.expired = False

    def lease_end(self, task: Task, deadline: int | None) -> int:
        """When a lease of now ends."""
        end: int = self.now + (task.policy_of("leaseSeconds") or LEASE)
        return end if deadline is None else min(end, deadline + 30)

    def _overdue(self, attempt: Attempt) -> bool:
        return attempt.deadline is not None and attempt.deadline <= self.now

    def _backoff(self, task: Task, n: int) -> int:
        delay: int = min(300, task.body["retry"]["initialDelaySeconds"] * 2 ** (n - 1))
        return delay

    # what follows

    def follow(self, *ended: Task) -> None:
        """Parents look whether their waits are over; children of the cancelled are asked to cancel."""
        for task in ended:
            if task.status in SETTLED and task.parent is not None:
                self.look(self.tasks[task.parent])
            if task.status == "cancelled":
                for step in list(task.children().values()):
                    child = self.tasks[step.child or ""]
                    before = child.status
                    if child.parent == task.id and not step.detached and self.ask_to_cancel(child):
                        self.met["cancel of a child", before] += 1

    def ask_to_cancel(self, task: Task) -> bool:
        """Whether that changed anything."""
        if task.status == "running" and not task.cancel_requested:
            task.cancel_requested = True
            task.note("cancel-requested")
            return True
        if task.status not in ("queued", "waiting"):
            return False
        task.cancel_requested, task.wait = True, None
        if task.reconcile is not None or task.is_open(False):  # nobody will be asked now
            task.move("outcome-unknown", self.now)
            why = task.reconcile[1] if task.reconcile else None
            task.fail(why if why in ("LEASE_EXPIRED", "ATTEMPT_TIMEOUT") else "RELEASED_UNSAFE", task.open_step())
            task.note("outcome-unknown")
            self.met["cancel → outcome-unknown", task.code or ""] += 1
            return True
        task.move("cancelled", self.now)
        task.note("cancelled")
        if task.attempt is not None:
            task.attempt.ended = True
        self.follow(task)
        return True

    def look(self, task: Task, *, at_once: bool = False) -> bool:
        """Ends the task's wait if what it waits for is there; `at_once`: with the suspension itself."""
        wait = task.wait
        if task.status != "waiting" or wait is None:
            return False
        signal, ends = self._signal(task, wait), self._ends(task, wait)
        output: Any
        known = wait.name in task.steps
        if known:
            by, output = "known", None
        elif signal is not None:
            by, output = "signal", {"signal": signal.payload}
            signal.taken = wait.name
        elif ends is not None:
            by, output = "children", {"children": ends}
        elif wait.wake is not None and wait.wake <= self.now:
            by, output = self._in_vain(task, wait), {"timedOut": True}
        else:
            return False
        self.met["wait", f"{by} at once" if at_once else by] += 1
        task.move("queued", self.now)
        task.due, task.wait = self.now, None
        seq = task.note("resumed")
        if not known:
            task.releases = 0
            task.steps[wait.name] = Step("wait", seq, "succeeded", True, output=output, ended=seq)
        return True

    def _in_vain(self, task: Task, wait: Wait) -> str:
        """What came after the time, though nobody had looked."""
        if any(signal.name == wait.signal and signal.taken is None for signal in task.signals.values()):
            return "time before a signal"
        kids = [self.tasks[task.steps[name].child or ""] for name in wait.children or ()]
        return "time before the children" if kids and all(kid.finished is not None for kid in kids) else "time"

    def _signal(self, task: Task, wait: Wait) -> Signal | None:
        """The oldest of its name that came in time and was not taken."""
        kept = (s for s in task.signals.values() if s.name == wait.signal and s.taken is None)
        return next((s for s in kept if wait.wake is None or s.at <= wait.wake), None)

    def _ends(self, task: Task, wait: Wait) -> list[tuple[str, str, str]] | None:
        """Name, id and status of the children waited for, if all of them settled in time."""
        if wait.children is None:
            return None
        found = [(name, self.tasks[task.steps[name].child or ""]) for name in wait.children]
        if any(child.finished is None or (wait.wake is not None and child.finished > wait.wake) for _, child in found):
            return None
        return [(name, child.id, child.status) for name, child in found]
