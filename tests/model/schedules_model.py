"""Schedules in the model: when they are due, what becomes of each instant, and which tasks stand before which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.fleet_model import Fleet
from model.records import SETTLED, Place, Refused, Task

AWAY = 180
"""A silence of the sweep that is downtime: three times the time between sweeps."""
MOST = 1000
EVERY, CRON = "everySeconds", "cron"
FIVE_MINUTES = "*/5 * * * *"

Find = Callable[[Place, int], str]
"""The id of the task that the service made of an instant."""


@dataclass
class Schedule:
    """One schedule; its instants are `anchor` + n · `every`."""

    place: Place
    body: dict[str, Any]  # as it was put
    anchor: int
    next: int
    paused: bool = False
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    last: tuple[int, str, int] | None = None  # due, outcome, instants passed over with it

    @property
    def every(self) -> int:
        """Seconds from one instant to the next."""
        found: int = 300 if CRON in self.body else self.body[EVERY]
        return found

    @property
    def overlap(self) -> str:
        """What it says of tasks that have not ended."""
        return str(self.body.get("overlap", "allow"))

    @property
    def pushes(self) -> bool:
        """Whether a task that waits asks those before it to end."""
        return self.overlap == "cancel-previous"

    def after(self, instant: int) -> int:
        """Its first instant after that one."""
        return self.anchor + max(1, (instant - self.anchor) // self.every + 1) * self.every

    def coming(self, now: int) -> list[int]:
        """The next five; of a paused one: if it were resumed now."""
        first = self.after(now) if self.paused and self.next <= now else self.next
        return [first + n * self.every for n in range(5)]


class Schedules(Fleet):
    """What is submitted by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.schedules: dict[Place, Schedule] = {}
        self.ticked = 0  # the last pass over what is due

    # calls

    def schedule(self, place: Place) -> Schedule:
        """The schedule of this name."""
        if place not in self.schedules:
            raise Refused("NOT_FOUND")
        return self.schedules[place]

    def put_schedule(self, place: Place, body: dict[str, Any], find: Find) -> str:
        """Whether it is `new`, `changed`, or the same (`again`)."""
        known = self.schedules.get(place)
        if known is not None and _whole(known.body) == _whole(body):
            return "again"
        if known is not None and _rule(known.body) == _rule(body):
            known.body = body
            return "changed"
        if known is not None:
            self._fire(known, find)
        anchor = 0 if CRON in body else self.now
        made = Schedule(place, body, anchor, 0)
        made.next = made.after(self.now)
        if known is not None:
            made.paused, made.last = known.paused, known.last
            made.fired, made.skipped, made.missed = known.fired, known.skipped, known.missed
        self.schedules[place] = made
        return "changed" if known else "new"

    def bring(self, owner: str, bodies: dict[str, dict[str, Any]], find: Find) -> None:
        """A registration with all the schedules of its worker id."""
        self.drop_schedules(owner, *bodies)
        self.fire_changed(owner, bodies, find)
        for name, body in bodies.items():
            self.put_schedule((owner, name), body, find)

    def fire_changed(self, owner: str, bodies: dict[str, dict[str, Any]], find: Find) -> None:
        """Deals with what is due by rules that a registration changes: as a sweep might have, also where it is refused then."""
        for name, body in bodies.items():
            known = self.schedules.get((owner, name))
            if known is not None and _rule(known.body) != _rule(body):
                self._fire(known, find)

    def drop_schedules(self, owner: str, *kept: str) -> None:
        """Takes the others of this owner away."""
        self.schedules = {place: s for place, s in self.schedules.items() if place[0] != owner or place[1] in kept}

    def remove_schedule(self, place: Place) -> bool:
        """Whether there was none."""
        return self.schedules.pop(place, None) is None

    def pause_schedule(self, place: Place) -> bool:
        """Whether it was paused before."""
        found = self.schedule(place)
        before, found.paused = found.paused, True
        return before

    def resume_schedule(self, place: Place) -> bool:
        """Whether it was not paused; what came due meanwhile is passed over."""
        found = self.schedule(place)
        if not found.paused:
            return True
        found.next = found.coming(self.now)[0]
        found.paused = False
        return False

    def trigger(self, place: Place, task_id: str, key: str | None) -> tuple[str, bool]:
        """(the task, whether it was there before)."""
        asked = {"trigger": place}
        try:
            known = self.named(key, asked)
        except Refused:
            self.schedule(place)  # that there is none is told first
            raise
        if known is not None:  # told again, whether or not the schedule is still there
            return known, True
        found = self.schedule(place)
        self._make(found, task_id, self.now, waits=found.overlap != "allow")
        self.remember(key, task_id, asked)
        return task_id, False

    def named(self, key: str | None, asked: dict[str, Any]) -> str | None:
        """The task that the idempotency key names already."""
        raise NotImplementedError

    def remember(self, key: str | None, task_id: str, asked: dict[str, Any]) -> None:
        """The key names this task from now on."""
        raise NotImplementedError

    # firing

    def tick(self, find: Find) -> dict[str, int]:
        """One pass over what is due: instants by what became of them."""
        done = {"fired": 0, "skipped": 0, "missed": 0}
        for schedule in list(self.schedules.values()):
            for outcome in self._fire(schedule, find):
                if outcome in done:
                    done[outcome] += 1
        self.ticked = self.now
        for task in list(self.tasks.values()):
            if task.status == "queued" and task.schedule in self.schedules and self.schedules[task.schedule].pushes:
                self._push(task)
        return done

    def _fire(self, schedule: Schedule, find: Find) -> list[str]:
        """What becomes of the instants that are due."""
        if schedule.paused or schedule.next > self.now:
            return []
        due = list(range(schedule.next, self.now + 1, schedule.every))
        schedule.next = due[-1] + schedule.every
        away, policy = self.now - self.ticked > AWAY, schedule.body.get("catchUp", "last")
        kept = due[-1:] if away and policy != "all" else due[-MOST:]
        passed = len(due) - len(kept)
        self.met["catch up", f"{policy}, away" if away else "late" if len(due) > 1 else "in time"] += 1
        if away and policy == "none":
            schedule.missed += len(due)
            schedule.last = (due[-1], "missed", passed)
            return ["missed"]
        schedule.missed += passed
        outcomes = [self._deal(schedule, instant, kept, find) for instant in kept]
        schedule.last = (kept[-1], outcomes[-1], passed if len(kept) == 1 else 0)
        return outcomes

    def _deal(self, schedule: Schedule, instant: int, others: list[int], find: Find) -> str:
        """What becomes of one instant; `others` are dealt with at the same time."""
        before = self._unended(schedule.place)
        gives_way = schedule.pushes and instant != others[-1]  # to the last of those that are dealt with together, at once
        outcome = "skipped" if schedule.overlap == "skip" and before else "fired"
        try:
            self.require(schedule.body["type"], schedule.body.get("requireWorker") if outcome == "fired" else None)
        except Refused:
            self.met["firing", "refused"] += 1
            return "refused"
        if gives_way:
            outcome = "skipped"
        elif outcome == "fired":
            self._make(schedule, find(schedule.place, instant), instant, waits=schedule.overlap == "cancel-previous")
        self.met["firing", f"{schedule.overlap}: {outcome}{' behind others' if outcome == 'fired' and before else ''}"] += 1
        schedule.fired += outcome == "fired"
        schedule.skipped += outcome == "skipped"
        return outcome

    def _unended(self, place: Place) -> list[str]:
        return [task.id for task in self.tasks.values() if task.schedule == place and task.status not in SETTLED]

    def _make(self, schedule: Schedule, task_id: str, due: int, *, waits: bool) -> Task:
        before = self._unended(schedule.place) if waits else []
        own = ("type", CRON, EVERY, "overlap", "catchUp", "requireWorker")
        body = {"priority": 0} | {name: value for name, value in schedule.body.items() if name not in own}
        task = self.add(task_id, schedule.body["type"], body, due=due)
        task.schedule, task.before = schedule.place, before
        if schedule.pushes:
            self._push(task)
        return task

    def _push(self, task: Task) -> None:
        """Asks those before it to end; one whose outcome is unknown cannot be asked."""
        for before in task.before:
            was = self.tasks[before].status
            if self.ask_to_cancel(self.tasks[before]):
                self.met["cancel of the previous", was] += 1


def _rule(body: dict[str, Any]) -> tuple[Any, ...]:
    return body.get(CRON), body.get(EVERY)


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    """With what it did not say."""
    return {"overlap": "allow", "catchUp": "last", "priority": 0} | body
