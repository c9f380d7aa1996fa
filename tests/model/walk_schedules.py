"""Schedules: put, registered, read, paused, triggered, and fired as the clock is moved."""

from __future__ import annotations

from typing import Any, ClassVar

from model.records import Place
from model.schedules_model import CRON, EVERY, FIVE_MINUTES, Schedule
from model.walk_attempts import KEYS
from model.walk_controls import ControlCalls
from model.walk_fleet import OTHER
from support.play import Json
from support.timetable import Timetable

API = ""
NAMES: dict[str, tuple[str, ...]] = {API: ("s1", "s2"), OTHER: ("s1", "s3")}
MOST = 3
"""Schedules beyond which the walks seldom make another: they would make more tasks than anybody looks at."""


class ScheduleCalls(ControlCalls):
    """All calls of a walk."""

    CALLS: ClassVar[dict[str, float]] = {
        "put_schedule": 1.5,
        "get_schedule": 0.5,
        "list_schedules": 0.3,
        "remove_schedule": 0.6,
        "pause_schedule": 0.4,
        "resume_schedule": 0.5,
        "trigger": 0.6,
        "tick": 3,
        "be_away": 0.3,
    }
    ASKED: ClassVar[dict[str, str]] = {"put schedule as": "put_schedule", "trigger that": "trigger", "catch up": "be_away"}

    # putting

    def _timetable(self) -> Json:
        pick = self.chance.choice
        body: Json = {"type": pick(["demo/hello", "demo/hello", "demo/child"]), "schemaVersion": 1, "input": {}}
        body |= {EVERY: pick([40, 90, 250])} if self.odds(0.85) else {CRON: FIVE_MINUTES}
        body["retry"] = {"maxAttempts": pick([1, 2]), "initialDelaySeconds": 0, "multiplier": 2, "jitter": 0}
        for name, values in {
            "overlap": ["allow", "skip", "skip", "cancel-previous", "cancel-previous", "cancel-previous"],
            "catchUp": ["none", "last", "all"],
            "priority": [0, 5],
        }.items():
            body |= {name: pick(values)} if self.odds(0.8) else {}
        for name, seconds in {"leaseSeconds": [30, 300], "timeoutSeconds": [20], "startDeadlineSeconds": [30, 100]}.items():
            body |= {name: pick(seconds)} if self.odds(0.2) else {}
        if body["type"] == "demo/hello" and self.odds(0.2):
            key = pick(list(KEYS))
            body["concurrency"] = {"key": key, "limit": KEYS[key]}
        if self.odds(0.1):
            body |= pick(
                [{"requireWorker": "registered", "type": "demo/child"}, {"requireWorker": "online", "type": "demo/nobody"}]
            )
        return body

    def _changed(self, found: Schedule) -> Json:
        """Another body for it: the same, another rule, or other options."""
        body, other = dict(found.body), self._timetable()
        how = self.chance.choice(["same", "rule", "options", "all"])
        if how in ("rule", "all"):
            body = {name: value for name, value in body.items() if name not in (EVERY, CRON)}
            body |= {name: value for name, value in other.items() if name in (EVERY, CRON)}
        if how in ("options", "all"):
            rule = {name: value for name, value in body.items() if name in (EVERY, CRON)}
            body = {name: value for name, value in other.items() if name not in (EVERY, CRON)} | rule
        return body

    def _some_place(self, *, there: bool = True) -> Place:
        if there and self.model.schedules and self.odds(0.9):
            return self.chance.choice(sorted(self.model.schedules))
        owner = self.chance.choice(list(NAMES))
        return owner, self.chance.choice(NAMES[owner])

    def _path(self, place: Place, action: str = "") -> str:
        return f"/v1/schedules/{place[1]}{action}" + (f"?owner={place[0]}" if place[0] else "")

    async def _put_schedule(self) -> None:
        place = self._some_place(there=len(self.model.schedules) >= MOST or self.odds(0.5))
        known = self.model.schedules.get(place)
        body = self._changed(known) if known else self._timetable()
        wrong: list[tuple[Json, str]] = [
            ({EVERY: 60, CRON: FIVE_MINUTES}, "INVALID_REQUEST"),
            ({EVERY: 0}, "INVALID_REQUEST"),
            ({"delaySeconds": 1}, "INVALID_REQUEST"),
            ({"type": "nonsense"}, "INVALID_TYPE"),
        ]
        if self.rare(0.1, "put schedule", "INVALID_REQUEST", "INVALID_TYPE"):
            fields, code = self.chance.choice(wrong)
            no = await self.call(self.play.http.producer, "PUT", self._path(place), body | fields)
            self.refused("put schedule", no, code)
            return
        status, view = await self.call(self.play.http.producer, "PUT", self._path(place), body)
        assert status in (200, 201), view

        def judge() -> str:
            return self.model.put_schedule(place, body, self._made())

        told = "new" if status == 201 else "again" if view["duplicate"] else "changed"
        self.judge("put schedule", judge, told, None, again=told == "again")
        self.count("put schedule as", told)
        self._check_view(self.model.schedules[place], view)

    def brought(self, worker: str) -> Json:
        """The schedules of a registration: most often those that there are, each as it was or not."""
        if worker != OTHER or self.odds(0.2):
            return {}
        found = []
        for name in NAMES[OTHER]:
            known = self.model.schedules.get((OTHER, name))
            if self.odds(0.8 if known else 0.4):
                found.append({"name": name, **(self._changed(known) if known else self._timetable())})
        return {"schedules": found}

    def bring(self, worker: str, body: Json, *, refused: bool = False) -> None:
        """The registration was taken, or not."""
        schedules = {found["name"]: {k: v for k, v in found.items() if k != "name"} for found in body.get("schedules", ())}
        (self.model.fire_changed if refused else self.model.bring)(worker, schedules, self._made())

    # reading

    async def _get_schedule(self) -> None:
        if self.model.schedules:
            place = self._some_place()
            found = self.model.schedules.get(place)
            path = self._path(place) if found else self._path(min(self.model.schedules))
            view = await self.read("get schedule", path, "NOT_FOUND", "/v1/schedules/nobody")
            if view is not None:
                self._check_view(found or self.model.schedules[min(self.model.schedules)], view)

    async def _list_schedules(self) -> None:
        page = await self.read("list schedules", "/v1/schedules", "INVALID_CURSOR", "nonsense", limit=200)
        if page is not None:
            assert [(view["owner"] or API, view["name"]) for view in page["items"]] == sorted(self.model.schedules)
            for view in page["items"]:
                self._check_view(self.model.schedules[view["owner"] or API, view["name"]], view)

    def _check_view(self, found: Schedule, view: Json) -> None:
        coming = [self._shown(instant) for instant in found.coming(self.model.now)]
        last = view["lastFiring"] and (view["lastFiring"]["dueAt"], view["lastFiring"]["outcome"], view["lastFiring"]["missed"])
        told = {name: view[name] for name in ("paused", "nextFirings", "fired", "skipped", "missed", "error")} | {"last": last}
        wanted = {
            "paused": found.paused,
            "nextFirings": coming,
            "fired": found.fired,
            "skipped": found.skipped,
            "missed": found.missed,
            "error": None,
            "last": found.last and (self._shown(found.last[0]), *found.last[1:]),
        }
        assert told == wanted, f"schedule {found.place}: the service says {told}, the model {wanted}"
        assert view["nextDueAt"] == coming[0]
        for name, value in ({"overlap": "allow", "catchUp": "last"} | found.body).items():
            if name not in ("input", "retry"):
                assert view[name] == value, f"{name} of schedule {found.place}: {view[name]}, not {value}"

    def _shown(self, instant: int) -> str:
        text = self.instant(instant)
        return text if "." in text else text.replace("Z", ".000000Z")

    # pause, resume, remove, trigger

    async def _pause_schedule(self) -> None:
        await self._act("pause")

    async def _resume_schedule(self) -> None:
        await self._act("resume")

    async def _act(self, action: str) -> None:
        paused = sorted(place for place, found in self.model.schedules.items() if found.paused)
        place = self.chance.choice(paused) if paused and action == "resume" and self.odds(0.8) else self._some_place()
        if self.rare(0.05, f"{action} schedule", "NOT_FOUND"):
            place = API, "nobody"
        code, view = await self.call(self.play.http.producer, "POST", self._path(place, f"/{action}"), {})

        def judge() -> bool:
            return self.model.pause_schedule(place) if action == "pause" else self.model.resume_schedule(place)

        again = bool(view.get("duplicate"))
        if self.judge(f"{action} schedule", judge, view.get("duplicate"), None if code == 200 else view, again=again):
            self._check_view(self.model.schedules[place], view)

    async def _remove_schedule(self) -> None:
        place = self._some_place()
        if self.rare(0.05, "remove schedule", "SCOPE_DENIED"):
            no = await self.call(self.play.http.metrics, "DELETE", self._path(place))
            self.refused("remove schedule", no, "SCOPE_DENIED")
            return
        code, answer = await self.call(self.play.http.producer, "DELETE", self._path(place))
        told, again = answer.get("duplicate"), bool(answer.get("duplicate"))
        error = None if code == 200 else answer
        self.judge("remove schedule", lambda: self.model.remove_schedule(place), told, error, again=again)

    async def _trigger(self) -> None:
        place = self._some_place()
        found = self.model.schedules.get(place)
        live = sum(task.finished is None for task in self.model.tasks.values())
        if found is not None and ("requireWorker" in found.body or live > 14):
            return
        if self.rare(0.05, "trigger", "NOT_FOUND"):
            place, found = (API, "nobody"), None
        young = [(key, asked) for at, key, asked in self.keys if at > self.model.now - 3600 and "trigger" in asked]
        key = None
        if young and self.rare(0.3, "trigger", "again", "IDEMPOTENCY_CONFLICT"):
            key, asked = self.chance.choice(young)
            place = asked["trigger"] if self.odds(0.6) and asked["trigger"] in self.model.schedules else place
        elif found is not None and self.odds(0.5):
            key = self._key({"trigger": place})
        body = {"idempotencyKey": key} if key else {}
        code, view = await self.call(self.play.http.producer, "POST", self._path(place, "/trigger"), body)
        ok, again = code in (200, 201), bool(view.get("deduplicated"))

        def judge() -> tuple[str, bool]:
            return self.model.trigger(place, str(view.get("id")), key)

        told = (view.get("id"), view.get("deduplicated"))
        if self.judge("trigger", judge, told, None if ok else view, again=again) and not again:
            self.count("trigger that", "waits" if self.model.is_held(self.model.tasks[view["id"]]) else "starts")

    # firing

    def _made(self) -> Any:
        """Looks up the tasks that the service made of due instants."""
        query = (
            "SELECT id::text, coalesce(schedule_owner, ''), schedule_name, extract(epoch FROM due_first - %s)::integer FROM"
            " (SELECT id, schedule_owner, schedule_name, due_at AS due_first FROM tasks WHERE schedule_name IS NOT NULL) AS t"
        )
        rows = self.truth.execute(query, (self.zero,)).fetchall()
        new = {((owner, name), due): id_ for id_, owner, name, due in rows if id_ not in self.model.tasks}

        def find(place: Place, due: int) -> str:
            assert (place, due) in new, f"no task was made of schedule {place} at {due}; there are {new}"
            return new[place, due]

        return find

    async def _tick(self) -> None:
        done = await Timetable(self.play.http, self.clock).fire()
        wanted = self.model.tick(self._made())
        told = {name: done[name] for name in wanted}
        assert told == wanted, f"tick: the service counts {told}, the model {wanted}"
        self.count("tick", "taken" if any(wanted.values()) else "nothing")

    async def step(self) -> None:
        """One call at least; the first sweep comes before all others: what nobody ever swept was not away."""
        if not self.seen:
            await Timetable(self.play.http, self.clock).fire()
        await super().step()

    async def _be_away(self) -> None:
        """Nobody sweeps for longer than three times the time between sweeps."""
        if not self.model.schedules:
            return
        seconds = self.chance.choice([200, 330])
        self.clock.advance(seconds)
        self.model.now += seconds
        await self._tick()
        self.compare()

    async def _wait_limit(self) -> None:
        """As before; but nothing is to be made up for a whole day's instants."""
        for place, found in sorted(self.model.schedules.items()):
            if found.body.get("catchUp") == "all":
                await self.call(self.play.http.producer, "DELETE", self._path(place))
                self.model.remove_schedule(place)
        await super()._wait_limit()
        self.compare()
        await self._tick()
