"""Programs that register, processes that end or are asked to, and what is told of them."""

from __future__ import annotations

from typing import Any, ClassVar

from model.records import UNSAFE, Refused
from model.walk_attempts import INSTANCES, WORKER
from model.walk_tasks import SUBMIT, TaskCalls
from support.play import Json

OTHER = "reporter"
"""A second program: it never claims."""
OFFLINE_TYPES = ("demo/offline", "inference/offline")
SAFETIES = [("pure", False), ("pure", True), ("pure", True), ("idempotent", True), (UNSAFE, True)]


class FleetCalls(TaskCalls):
    """Calls that concern programs and their processes."""

    CALLS: ClassVar[dict[str, float]] = {
        "register": 1.5,
        "end_instance": 0.5,
        "drain": 0.4,
        "remove_worker": 0.3,
        "require": 0.5,
        "list_workers": 0.4,
        "get_worker": 0.4,
        "list_types": 0.4,
        "get_type": 0.4,
        "doctor": 0.2,
        "config": 0.1,
    }
    ASKED: ClassVar[dict[str, str]] = {"submit that requires": "require"}

    def process(self, type_: str) -> str:
        """The process that claims this type: another one, most often, where it was asked to end."""
        name, n = INSTANCES[type_], 1
        while self.model.is_told_to_end(WORKER, name) and self.odds(0.9):
            n += 1
            name = f"{INSTANCES[type_]}-{n}"
        return name

    # registration

    async def _register(self) -> None:
        strict = self.model.handler(WORKER, "demo/hello").get("effectSafety") == UNSAFE
        worker = WORKER if strict or self.odds(0.4) else OTHER
        types = ["demo/hello", *(["demo/child"] if self.odds(0.3) else [])] if worker == WORKER else list(OFFLINE_TYPES)
        build, replace = self.chance.choice([None, "1", "2", "3"]), self.odds(0.2)
        handlers = [self._handler(type_) for type_ in types]
        name = "one" if worker == WORKER else self.chance.choice(["r1", "r2"])
        body: Json = {"instanceId": name, "handlers": handlers, "replace": replace, **self.brought(worker)}
        body |= {"build": build} if build else {}
        if self.rare(0.1, "register", "INVALID_REQUEST"):
            no = await self.call(self.play.http.worker, "PUT", f"/v1/workers/{worker}", body | {"handlers": [handlers[0]] * 2})
            self.refused("register", no, "INVALID_REQUEST")
            return
        code, answer = await self.call(self.play.http.worker, "PUT", f"/v1/workers/{worker}", body)

        def judge() -> list[Any]:
            try:
                self.model.register(worker, name, build, handlers, replace=replace)
            except Refused:
                self.bring(worker, body, refused=True)
                raise
            self.bring(worker, body)
            return [(handler["type"], handler["effectSafety"]) for handler in handlers]

        told = [(handler["type"], handler["effectSafety"]) for handler in answer.get("handlers", ())]
        self.judge("register", judge, told, None if code == 200 else answer)

    def _handler(self, type_: str) -> Json:
        safety, reconciles = self.chance.choice(SAFETIES)
        handler: Json = {"type": type_, "schemaVersion": 1, "effectSafety": safety, "reconciles": reconciles}
        for name, values in {"leaseSeconds": [30, 90], "timeoutSeconds": [25], "startDeadlineSeconds": [20, 50]}.items():
            handler |= {name: self.chance.choice(values)} if self.odds(0.2) else {}
        return handler

    def brought(self, worker: str) -> Json:
        """The schedules of a registration."""
        return {}

    def bring(self, worker: str, body: Json, *, refused: bool = False) -> None:
        """The registration was taken, or not."""

    async def _remove_worker(self) -> None:
        worker = self.chance.choice([WORKER, OTHER])
        if self.rare(0.2, "remove worker", "SCOPE_DENIED"):
            no = await self.call(self.play.http.worker, "DELETE", f"/v1/workers/{worker}")
            self.refused("remove worker", no, "SCOPE_DENIED")
            return
        code, answer = await self.call(self.play.http.operator, "DELETE", f"/v1/workers/{worker}")

        def judge() -> bool:
            again = self.model.remove_worker(worker)
            self.model.drop_schedules(worker)
            return again

        again = bool(answer.get("duplicate"))
        self.judge("remove worker", judge, answer.get("duplicate"), None if code == 200 else answer, again=again)

    # processes

    async def _end_instance(self) -> None:
        name = "nobody" if self.odds(0.3) else self.chance.choice(["r1", "r2"])
        code, answer = await self.call(self.play.http.worker, "DELETE", f"/v1/workers/{OTHER}/instances/{name}")
        told, again = answer.get("duplicate"), bool(answer.get("duplicate"))
        error = None if code == 200 else answer
        self.judge("end instance", lambda: self.model.end_instance(OTHER, name), told, error, again=again)

    async def _drain(self) -> None:
        worker = "nobody" if self.rare(0.3, "drain", "NOT_FOUND") else self.chance.choice([WORKER, OTHER])
        code, answer = await self.call(self.play.http.operator, "POST", f"/v1/workers/{worker}/drain", {})
        told = (sorted(answer.get("instances", ())), answer.get("duplicate"))
        error, again = None if code == 200 else answer, bool(answer.get("duplicate"))
        self.judge("drain", lambda: self.model.drain(worker), told, error, again=again)

    # submits that want a worker

    async def _require(self) -> None:
        type_ = self.chance.choice(["demo/nobody", "inference/nobody", *OFFLINE_TYPES, *INSTANCES])
        sure = len(self.model.online(type_, surely=True)) == len(self.model.online(type_, surely=False))
        wanted = self.chance.choice(["registered", *(["online"] if sure else [])])
        body = self._body()
        fields = SUBMIT | body | {"type": type_, "requireWorker": wanted}
        status, answer = await self.call(self.play.http.producer, "POST", "/v1/tasks", fields)
        if answer.get("code") == "NO_ELIGIBLE_INFERENCE_WORKER":
            assert (answer["managedFallbackUsed"], answer["billed"]) == (False, False)

        def judge() -> tuple[str, bool]:
            return self.model.submit(str(answer.get("id")), body, type_=type_, require=wanted)

        told = (answer.get("id"), answer.get("deduplicated"))
        if self.judge("submit that requires", judge, told, None if status == 201 else answer) and type_ not in INSTANCES:
            self.compare()
            await self._cancel_one(self.model.tasks[answer["id"]])  # nobody ever claims it

    # reads

    async def read(self, name: str, path: str, refusal: str, wrong: str, **params: Any) -> Json | None:
        """What a producer reads; None: it was refused, as it is for `wrong` (another path, or a cursor)."""
        if self.rare(0.2, name, refusal):
            place, cursor = (wrong, {}) if wrong.startswith("/") else (path, {"cursor": wrong})
            self.refused(name, await self.call(self.play.http.producer, "GET", place, params=params | cursor or None), refusal)
            return None
        code, body = await self.call(self.play.http.producer, "GET", path, params=params or None)
        assert code == 200, body
        self.count(name, "taken")
        return body

    async def _list_workers(self) -> None:
        page = await self.read("list workers", "/v1/workers", "INVALID_CURSOR", "nonsense", limit=200)
        if page is not None:
            running = {worker for (worker, _), found in self.model.instances.items() if not found.ended}
            wanted = running | set(self.model.workers)
            shown = {item["workerId"] for item in page["items"]}
            assert shown == wanted, f"the service lists {shown}, the model {wanted}"
            for item in page["items"]:
                self._check_worker(item)

    async def _get_worker(self) -> None:
        there = [worker for worker in (WORKER, OTHER) if worker in self.model.workers]
        if there:
            path = f"/v1/workers/{self.chance.choice(there)}"
            view = await self.read("get worker", path, "NOT_FOUND", "/v1/workers/nobody")
            if view is not None:
                self._check_worker(view)

    def _check_worker(self, view: Json) -> None:
        worker = view["workerId"]
        registered = self.model.workers.get(worker)
        assert view["registered"] == (registered is not None)
        handlers = [] if registered is None else sorted(registered.handlers.values(), key=lambda handler: str(handler["type"]))
        told = [(found["type"], found["effectSafety"], found["reconciles"]) for found in view["handlers"]]
        assert told == [(found["type"], found["effectSafety"], found["reconciles"]) for found in handlers]
        if registered is not None:
            assert view["build"] == registered.build
        there = {name: found for (owner, name), found in self.model.instances.items() if owner == worker and not found.ended}
        shown = {found["instanceId"]: (found["drainRequested"], sorted(found["serves"])) for found in view["instances"]}
        wanted = {name: (found.asked_to_end, sorted(f"{type_}@1" for type_ in found.serves)) for name, found in there.items()}
        assert shown == wanted, f"processes of {worker}: the service says {shown}, the model {wanted}"
        for item in view["instances"]:
            found = there[item["instanceId"]]
            states = {"draining"} if found.is_draining else {"ready", "full"}
            if not found.is_surely_online(self.model.now):
                states = states | {"offline"} if found.may_be_online(self.model.now) else {"offline"}
            assert item["state"] in states, f"{item}, the model {found} at {self.model.now}"

    async def _list_types(self) -> None:
        page = await self.read("list types", "/v1/task-types", "INVALID_CURSOR", "nonsense", limit=200)
        if page is not None:
            there = {item["type"] for item in page["items"]}
            unsettled = {task.type for task in self.model.tasks.values() if task.finished is None}
            assert unsettled | {type_ for found in self.model.workers.values() for type_ in found.handlers} <= there
            for item in page["items"]:
                self._check_type(item)

    async def _get_type(self) -> None:
        if self.model.known:
            path = f"/v1/task-types/{self.chance.choice(sorted(self.model.known))}/1"
            view = await self.read("get type", path, "TASK_TYPE_NOT_FOUND", "/v1/task-types/demo/unheard-of/1")
            if view is not None:
                self._check_type(view)

    def _check_type(self, view: Json) -> None:
        type_ = view["type"]
        tasks = [task for task in self.model.tasks.values() if task.type == type_]
        counts = [sum(task.status == status for task in tasks) for status in ("queued", "running", "waiting", "outcome-unknown")]
        told = [view["queued"], view["running"], view["waiting"], view["outcomeUnknown"]]
        assert told == counts, f"{type_}: the service counts {told}, the model {counts}"
        assert view["queued"] == view["ready"] + view["notDue"] + view["blocked"]
        assert (view["paused"], view["registered"]) == (self.model.is_paused(type_), type_ in self.model.known)
        most, least = (len(self.model.online(type_, surely=surely)) for surely in (False, True))
        assert least <= view["online"]["instances"] <= most, f"{type_}: {view['online']}, the model {least} to {most}"
        handlers = {worker: self.model.handler(worker, type_) for worker in self.model.workers}
        wanted = sorted((worker, found["effectSafety"]) for worker, found in handlers.items() if found)
        assert [(found["workerId"], found["effectSafety"]) for found in view["handlers"]] == wanted

    async def _doctor(self) -> None:
        if self.rare(0.3, "doctor", "SCOPE_DENIED"):
            self.refused("doctor", await self.call(self.play.http.metrics, "GET", "/v1/doctor"), "SCOPE_DENIED")
            return
        code, view = await self.call(self.play.http.producer, "GET", "/v1/doctor")
        tasks = self.model.tasks.values()
        assert code == 200, view
        unknown = sum(task.status == "outcome-unknown" for task in tasks)
        expired = sum(t.status == "running" and t.attempt is not None and t.attempt.lease_end <= self.model.now for t in tasks)
        told = (view["queueDepth"], view["outcomeUnknown"], view["debts"]["expiredLeases"], view["brokenSchedules"])
        wanted = (sum(task.status == "queued" and task.due <= self.model.now for task in tasks), unknown, expired, [])
        late = wanted[0] - told[0]  # what came due since anybody claimed or swept is not counted yet
        assert (told[1:], late >= 0) == (wanted[1:], True), f"doctor: the service says {told}, the model {wanted}"
        self.count("doctor", "taken")

    async def _config(self) -> None:
        if self.rare(0.3, "config", "UNAUTHENTICATED"):
            self.refused("config", await self.call(self.play.http, "GET", "/v1/config"), "UNAUTHENTICATED")
            return
        code, view = await self.call(self.play.http.worker, "GET", "/v1/config")
        assert code == 200, view
        assert {"schedules", "pause", "limits", "drain", "bulk"} <= set(view["features"])
        self.count("config", "taken")
