"""Registration of worker programs: replaced as a whole, guarded by builds, reaching back to what waits (protocol.md §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock_core.db import Database
from support.clock import Clock
from support.play import Play

Json = dict[str, Any]


def handler(name: str = "demo/hello", version: int = 1, safety: str = "pure", **fields: Any) -> Json:
    return {"type": name, "schemaVersion": version, "effectSafety": safety, **fields}


async def register(play: Play, worker_id: str = "greeter", *, key: str | None = None, **fields: Any) -> Any:
    client = play.http.use(key) if key else play.http.worker
    body = {"instanceId": "host-1", "slots": 2, "handlers": [handler()], **fields}
    return await client.put(f"/v1/workers/{worker_id}", json=body)


async def served_by(play: Play, worker_id: str = "greeter") -> list[str]:
    view = (await play.http.operator.get(f"/v1/workers/{worker_id}")).json()
    return [f"{h['type']}@{h['schemaVersion']}" for h in view["handlers"]]


async def test_a_registration_is_seen_with_its_process(play: Play) -> None:
    sdk = {"name": "interlock-python", "version": "0.1.0"}
    answer = await register(play, host="garage", build="7", sdk=sdk, pool="gpu")
    assert answer.status_code == 200, answer.text
    assert {k: v for k, v in answer.json().items() if k not in ("registeredAt", "serverTime")} == {
        "workerId": "greeter",
        "instanceId": "host-1",
        "pool": "gpu",
        "slots": 2,
        "build": "7",
        "handlers": [handler()],
    }
    view = (await play.http.producer.get("/v1/workers/greeter")).json()
    assert (view["state"], view["registered"], view["pool"], view["slots"], view["used"], view["build"]) == (
        "ready",
        True,
        "gpu",
        2,
        0,
        "7",
    )
    (instance,) = view["instances"]
    assert (instance["instanceId"], instance["host"], instance["sdk"], instance["serves"]) == (
        "host-1",
        "garage",
        "interlock-python/0.1.0",
        ["demo/hello@1"],
    )


async def test_a_registration_replaces_the_handlers_as_a_whole(play: Play) -> None:
    await register(play, handlers=[handler("a/one"), handler("a/two", 2)])
    await register(play, "other", handlers=[handler("b/own")])
    await register(play, handlers=[handler("a/two", 3)])
    assert await served_by(play) == ["a/two@3"]
    assert await served_by(play, "other") == ["b/own@1"]
    await register(play, handlers=[])
    assert await served_by(play) == []


async def test_an_older_build_does_not_undo_a_newer_one(play: Play) -> None:
    await register(play, build="2026-02", handlers=[handler(version=2)])
    refused = await register(play, build="2026-01", instanceId="old", handlers=[handler(version=1)])
    assert (refused.status_code, refused.json()["code"]) == (409, "WORKER_ID_CONFLICT")
    assert "2026-02" in refused.json()["detail"]
    assert refused.json()["retryable"] is False
    assert await served_by(play) == ["demo/hello@2"]
    # it goes on claiming, unregistered
    task = await play.submit()
    body = play.claim_body(instance="old", workerId="greeter")
    claimed = (await play.http.worker.post("/v1/claims", json=body)).json()["attempts"]
    assert [a["taskId"] for a in claimed] == [task["id"]]
    instances = (await play.http.operator.get("/v1/workers/greeter")).json()["instances"]
    assert {i["instanceId"]: i["registered"] for i in instances} == {"host-1": True, "old": False}
    # the same build, a newer one, and one that says `replace` do
    for fields in ({"build": "2026-02"}, {"build": "2026-10"}, {"build": "2026-01", "replace": True}):
        answer = await register(play, handlers=[handler(version=3)], **fields)
        assert answer.status_code == 200, answer.text
    assert await served_by(play) == ["demo/hello@3"]


async def test_builds_are_compared_as_text_and_one_that_is_not_named_neither_wins_nor_loses(play: Play) -> None:
    await register(play, build="9")
    assert (await register(play, build="10")).status_code == 409
    assert (await register(play)).status_code == 200
    assert (await register(play, build="10")).status_code == 200


async def test_registrations_of_one_worker_id_at_once_leave_one_of_them_whole(play: Play) -> None:
    answers = await asyncio.gather(
        *(register(play, instanceId=f"host-{n}", handlers=[handler(f"t{n}/{m}") for m in "abc"]) for n in range(12))
    )
    assert {a.status_code for a in answers} == {200}
    left = await served_by(play)
    assert len(left) == 3
    assert len({name.split("/")[0] for name in left}) == 1


async def test_a_smaller_start_deadline_reaches_back_to_what_waits_unstarted(play: Play, clock: Clock) -> None:
    clock.hold()
    ready = await play.submit()
    delayed = await play.submit(delaySeconds=100)
    smaller = await play.submit(startDeadlineSeconds=5)
    await play.submit(concurrency={"key": "k", "limit": 1}, priority=50)
    (holder,) = await play.claim()
    blocked = await play.submit(concurrency={"key": "k", "limit": 1})
    other = await play.submit(schemaVersion=2)
    await register(play, handlers=[handler(startDeadlineSeconds=30)])
    found = {
        task["id"]: (await play.get(task["id"]))["startDeadlineSeconds"] for task in (ready, delayed, smaller, blocked, other)
    }
    assert found == {ready["id"]: 30, delayed["id"]: 30, smaller["id"]: 5, blocked["id"]: 30, other["id"]: None}
    assert (await play.get(holder["taskId"]))["startDeadlineSeconds"] is None
    # a larger one, of another worker, changes nothing; and later submits get the smallest of all
    await register(play, "second", handlers=[handler(startDeadlineSeconds=60)])
    assert (await play.get(ready["id"]))["startDeadlineSeconds"] == 30
    assert (await play.submit())["startDeadlineSeconds"] == 30
    # from the first due time: the delayed one has its time still
    clock.advance(31)
    await play.sweep()
    assert (await play.get(ready["id"]))["failure"]["code"] == "START_DEADLINE_EXCEEDED"
    assert (await play.get(delayed["id"]))["status"] == "queued"
    clock.advance(100)
    await play.sweep()
    assert (await play.get(delayed["id"]))["failure"]["code"] == "START_DEADLINE_EXCEEDED"


@pytest.mark.in_process
async def test_a_start_deadline_reaches_more_tasks_than_one_statement_takes(
    play: Play, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    from interlock_core import workers

    monkeypatch.setattr(workers, "BATCH", 3)
    await play.http.producer.post(
        "/v1/tasks/batch", json={"tasks": [{"type": "demo/hello", "schemaVersion": 1, "input": 1}] * 10}
    )
    await register(play, handlers=[handler(startDeadlineSeconds=30)])
    items = (await play.http.producer.get("/v1/tasks")).json()["items"]
    assert [item["startDeadlineSeconds"] for item in items] == [30] * 10


async def test_a_narrowed_key_registers_only_inside(play: Play) -> None:
    key = await play.http.make_key("task-worker", types=["audio/*"], pools=["default"], workerIds=["cutter"])
    for fields, detail in (
        ({"handlers": [handler("audio/cut"), handler("video/cut")]}, "video/cut"),
        ({"pool": "gpu", "handlers": [handler("audio/cut")]}, "gpu"),
        ({"worker_id": "stranger", "handlers": [handler("audio/cut")]}, "stranger"),
    ):
        answer = await register(play, **{"worker_id": "cutter", **fields}, key=key)
        assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED")
        assert detail in answer.json()["detail"]
    assert (await play.http.operator.get("/v1/workers")).json()["items"] == []
    assert (await register(play, "cutter", handlers=[handler("audio/cut")], key=key)).status_code == 200
    gone = await play.http.use(key).delete("/v1/workers/stranger/instances/x")
    assert gone.status_code == 403


BROKEN: list[tuple[Json, str]] = [
    ({"instanceId": ""}, "/instanceId"),
    ({"slots": 0}, "/slots"),
    ({"slots": "2"}, "/slots"),
    ({"handlers": [handler(), handler()]}, "/handlers/1"),
    ({"handlers": [{"type": "demo/hello", "schemaVersion": 1}]}, "/handlers/0/effectSafety"),
    ({"handlers": [handler(leaseSeconds=2)]}, "/handlers/0/leaseSeconds"),
    ({"handlers": [handler(retry={"maxAttempts": 0})]}, "/handlers/0/retry/maxAttempts"),
    ({"handlers": [handler(inputSchema="text")]}, "/handlers/0/inputSchema"),
    ({"build": "\n"}, "/build"),
]


async def test_a_bad_registration_names_its_field(play: Play) -> None:
    for change, pointer in BROKEN:
        answer = await register(play, **change)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), change
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_a_worker_id_stands_in_paths(play: Play) -> None:
    for worker_id in ("-a", "a b", "ä", "a" * 129, "a%00b", ".hidden"):
        answer = await register(play, worker_id)
        assert answer.status_code in (400, 404), answer.text


async def test_a_versioned_type_is_told_how_to_be_sent(play: Play) -> None:
    answer = await register(play, handlers=[handler("audio/transcribe@1")])
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_TYPE")
    assert '"schemaVersion": 1' in answer.json()["next"]


async def test_unknown_fields_of_newer_programs_are_ignored(play: Play) -> None:
    answer = await register(play, schedules=[], future=True, handlers=[handler(later=1)])
    assert answer.status_code == 200, answer.text


async def test_text_is_cleaned_and_schemas_come_back_as_they_were_sent(play: Play) -> None:
    schema = '{"zebra": 1.0, "apple": 12345678901234567890123, "e": 1e2, "nul": "\\u0000"}'
    body = (
        '{"instanceId": "i", "host": "a\\u0000b", "sdk": {"name": "x\\ud800", "version": "1"}, "handlers": [{"type": "demo/hello", '
        '"schemaVersion": 1, "effectSafety": "pure", "description": "d\\u0000", "inputSchema": '
        + schema
        + ', "resultSchema": null}]}'
    ).replace("\\ud800", "")
    answer = await play.http.worker.put("/v1/workers/greeter", content=body)
    assert answer.status_code == 200, answer.text
    shown = await play.http.operator.get("/v1/task-types/demo/hello/1")
    assert schema in shown.text
    (served,) = shown.json()["handlers"]
    assert served["description"] == "d\ufffd"
    assert served["resultSchema"] is None
    assert (await play.http.operator.get("/v1/workers/greeter")).json()["instances"][0]["host"] == "a\ufffdb"


async def test_a_schema_beyond_the_cap_is_refused(play: Play) -> None:
    answer = await register(play, handlers=[handler(inputSchema={"description": "x" * 262_144})])
    assert (answer.status_code, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert answer.json()["errors"][0]["pointer"] == "/handlers/0/inputSchema"


async def test_an_ended_process_leaves_its_registration(play: Play) -> None:
    await register(play)
    task = await play.submit()
    path = "/v1/workers/greeter/instances/host-1"
    first = await play.http.worker.delete(path)
    assert (first.status_code, first.json()) == (200, {"workerId": "greeter", "instanceId": "host-1", "duplicate": False})
    assert (await play.http.worker.delete(path)).json()["duplicate"] is True
    view = (await play.http.operator.get("/v1/workers/greeter")).json()
    assert (view["state"], view["registered"], view["instances"]) == ("offline", True, [])
    assert await served_by(play) == ["demo/hello@1"]
    waiting = (await play.get(task["id"]))["waiting"]
    assert (waiting["reason"], "greeter" in waiting["detail"]) == ("no-worker", True)
    # a process that still lives says so by its next claim
    await play.http.worker.post("/v1/claims", json=play.claim_body(instance="host-1", workerId="greeter"))
    assert (await play.http.operator.get("/v1/workers/greeter")).json()["instanceCount"] == 1


async def test_an_unknown_process_or_one_of_another_project_is_not_found(play: Play) -> None:
    await register(play)
    stranger = play.http.use((await play.http.make_keys("other"))["task-worker"])
    for client, path in (
        (play.http.worker, "greeter/instances/none"),
        (stranger, "greeter/instances/host-1"),
        (play.http.worker, "greeter/instances/%00"),
    ):
        answer = await client.delete(f"/v1/workers/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_b16_two_processes_of_one_worker_id_are_two_in_the_fleet(play: Play) -> None:
    await register(play, instanceId="one")
    await register(play, instanceId="two")
    view = (await play.http.operator.get("/v1/workers/greeter")).json()
    assert sorted(i["instanceId"] for i in view["instances"]) == ["one", "two"]
    assert (view["slots"], view["state"]) == (4, "ready")


async def test_a_heartbeat_that_comes_after_the_goodbye_does_not_bring_a_process_back(play: Play, clock: Clock) -> None:
    await play.claim()
    assert (await play.http.worker.delete("/v1/workers/tester/instances/one")).status_code == 200
    clock.advance(6)
    body = {"workerId": "tester", "instanceId": "one", "draining": True, "attempts": []}
    assert (await play.http.worker.post("/v1/attempts/heartbeat", json=body)).status_code == 200
    answer = await play.http.operator.get("/v1/workers/tester")
    assert answer.status_code == 404 or answer.json()["state"] == "offline"
    task = await play.submit()
    assert (task["waiting"]["reason"], task["waiting"]["detail"][:9]) == ("no-worker", "no worker")


async def test_b54_processes_that_died_do_not_pile_up(play: Play, clock: Clock) -> None:
    """A crash a second for a minute: the latest dead ones stay for whoever looks, and those that tasks name as their holder."""

    async def register(instance_id: str, *types: str) -> None:
        handlers = [{"type": name, "schemaVersion": 1, "effectSafety": "pure"} for name in types]
        body = {"instanceId": instance_id, "slots": 1, "handlers": handlers}
        assert (await play.http.worker.put("/v1/workers/crashing", json=body)).status_code == 200

    await register("served-more", "demo/crash", "demo/other")
    await register("holder", "demo/crash")
    await play.submit(type="demo/crash", leaseSeconds=3600)
    claim = {"workerId": "crashing", "instanceId": "holder", "claimId": "c", "pool": "default", "slots": 1}
    answer = await play.http.worker.post(
        "/v1/claims", json={**claim, "handlers": [{"type": "demo/crash", "schemaVersion": 1, "effectSafety": "pure"}]}
    )
    assert len(answer.json()["attempts"]) == 1
    for number in range(60):
        clock.advance(60)
        await register(f"process-{number}", "demo/crash")
    shown = {i["instanceId"] for i in (await play.http.operator.get("/v1/workers/crashing")).json()["instances"]}
    assert shown == {"served-more", "holder", *(f"process-{number}" for number in range(39, 60))}


async def test_a_timeout_that_is_registered_after_the_first_claim_is_not_the_tasks(play: Play) -> None:
    """The policy is fixed at the first claim: none then is none for good."""
    attempt = await play.run()
    assert attempt["deadlineAt"] is None
    await play.release(attempt)
    await register(play, "tester", handlers=[handler(timeoutSeconds=30)])
    [again] = await play.claim()
    assert (again["deadlineAt"], (await play.get(again["taskId"]))["timeoutSeconds"]) == (None, None)
    await play.submit()
    assert (await play.claim())[0]["deadlineAt"] is not None


async def test_a_process_that_registers_after_its_end_is_another_one(play: Play) -> None:
    """The one before was asked to drain, and did."""
    await register(play, "tester", instanceId="one")
    await play.http.operator.post("/v1/workers/tester/drain", json={})
    await register(play, "tester", instanceId="one")
    await play.submit()
    assert await play.claim() == []  # the same process
    await play.http.worker.delete("/v1/workers/tester/instances/one")
    await register(play, "tester", instanceId="one")
    view = (await play.http.producer.get("/v1/workers/tester")).json()
    assert (view["state"], view["instances"][0]["drainRequested"]) == ("ready", False)
    assert len(await play.claim()) == 1


async def test_a_registered_worker_is_drained_though_no_process_is_remembered(play: Play, clock: Clock) -> None:
    await register(play)
    clock.advance(2 * 86_400)
    await play.sweep()
    answer = await play.http.operator.post("/v1/workers/greeter/drain", json={})
    assert (answer.status_code, answer.json()["instances"]) == (200, [])
