"""Schedules that come with a worker's registration (protocol.md §2, §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from support.timetable import Timetable, read

Json = dict[str, Any]
HANDLERS = [{"type": "report/build", "schemaVersion": 1, "effectSafety": "pure"}]


def nightly(name: str = "nightly", **fields: Any) -> Json:
    when = {} if "everySeconds" in fields else {"cron": "0 12 * * *"}
    return {"name": name, "type": "report/build", "schemaVersion": 1, "input": {}, **when, **fields}


async def register(client: httpx.AsyncClient, *schedules: Json, worker: str = "reporter", **fields: Any) -> httpx.Response:
    body = {"instanceId": "one", "handlers": HANDLERS, "schedules": list(schedules), **fields}
    return await client.put(f"/v1/workers/{worker}", json=body)


async def names(timetable: Timetable, owner: str = "reporter") -> list[str]:
    page = read(await timetable.http.producer.get("/v1/schedules", params={"owner": owner}))
    return [item["name"] for item in page["items"]]


async def test_a_registration_brings_its_schedules(timetable: Timetable) -> None:
    text = '{"n": 1.0, "big": 123456789012345678901234567890}'
    body = (
        '{"instanceId": "one", "handlers": [], "schedules": [{"name": "exact", "everySeconds": 60, "type": "report/build",'
        ' "schemaVersion": 1, "unknown": true, "retry": {"maxAttempts": 2, "unknown": 1}, "input": ' + text + "}]}"
    )
    answer = await timetable.http.worker.put("/v1/workers/reporter", content=body, headers={"content-type": "application/json"})
    assert read(answer)["schedules"] == [{"name": "exact", "nextDueAt": "2026-03-02T10:31:00.000000Z", "paused": False}]
    shown = await timetable.http.producer.get("/v1/schedules/exact?owner=reporter")
    assert text in shown.text
    assert shown.json()["retry"]["maxAttempts"] == 2
    await timetable.tick(60)
    [task] = await timetable.tasks("exact", scheduleOwner="reporter")
    assert (task["scheduleOwner"], task["retry"]["maxAttempts"]) == ("reporter", 2)


async def test_a_registration_replaces_the_schedules_of_its_worker_id_only(timetable: Timetable) -> None:
    await timetable.put("a", everySeconds=60)
    read(await register(timetable.http.worker, nightly("a"), worker="other"))
    read(await register(timetable.http.worker, nightly("a"), nightly("b"), nightly("c")))
    assert await names(timetable) == ["a", "b", "c"]
    read(await register(timetable.http.worker, nightly("b"), nightly("d", everySeconds=5)))
    assert await names(timetable) == ["b", "d"]
    assert await names(timetable, "other") == ["a"]
    read(await timetable.http.worker.put("/v1/workers/reporter", json={"instanceId": "one", "handlers": HANDLERS}))
    assert await names(timetable) == []
    assert (await timetable.get("a"))["owner"] is None


async def test_an_identical_schedule_keeps_its_next_instant_and_pause(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly(everySeconds=100), nightly("stopped", everySeconds=100)))
    await timetable.http.operator.post("/v1/schedules/stopped/pause?owner=reporter", json={})
    before = [await timetable.get(name, owner="reporter") for name in ("nightly", "stopped")]
    timetable.clock.advance(50)
    answer = read(await register(timetable.http.worker, nightly(everySeconds=100), nightly("stopped", everySeconds=100)))
    assert [schedule["paused"] for schedule in answer["schedules"]] == [False, True]
    assert [await timetable.get(name, owner="reporter") for name in ("nightly", "stopped")] == before
    await register(timetable.http.worker, nightly(everySeconds=200), nightly("stopped", everySeconds=100, priority=1))
    after = [await timetable.get(name, owner="reporter") for name in ("nightly", "stopped")]
    assert after[0]["nextDueAt"] == "2026-03-02T10:34:10.000000Z"
    assert (after[1]["nextDueAt"], after[1]["paused"], after[1]["priority"]) == (before[1]["nextDueAt"], True, 1)


async def test_a_changed_rule_fires_first_what_is_due(timetable: Timetable) -> None:
    read(
        await register(
            timetable.http.worker,
            nightly("kept", everySeconds=60),
            nightly("changed", everySeconds=60),
            nightly("gone", everySeconds=60),
        )
    )
    timetable.clock.advance(60)
    read(await register(timetable.http.worker, nightly("kept", everySeconds=60), nightly("changed", everySeconds=90)))
    assert await timetable.due("changed") == ["2026-03-02T10:31"]
    assert (await timetable.due("kept"), await timetable.due("gone")) == ([], [])
    assert (await timetable.fire())["fired"] == 1
    assert (await timetable.due("kept"), await timetable.due("gone")) == (["2026-03-02T10:31"], [])
    assert (await timetable.get("changed", owner="reporter"))["nextDueAt"] == "2026-03-02T10:32:30.000000Z"


async def test_one_bad_schedule_refuses_the_registration_whole(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly("old")))
    wrong: list[tuple[list[Json], str]] = [
        ([nightly("new"), nightly("bad", cron="0 0 31 4 *")], "/schedules/1/cron"),
        ([nightly("bad", timeZone="Mars/Base")], "/schedules/0/timeZone"),
        ([nightly("same"), nightly("same")], "/schedules/1"),
        ([nightly("a b")], "/schedules/0/name"),
        ([nightly("bad", leaseSeconds=1)], "/schedules/0/leaseSeconds"),
        ([{"name": "bad", "type": "report/build", "schemaVersion": 1, "cron": "* * * * *"}], "/schedules/0/input"),
    ]
    for schedules, pointer in wrong:
        answer = await register(timetable.http.worker, *schedules, handlers=[])
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), answer.text
        assert pointer in [error["pointer"] for error in answer.json()["errors"]]
    assert await names(timetable) == ["old"]
    handlers = read(await timetable.http.producer.get("/v1/workers/reporter"))["handlers"]
    assert [handler["type"] for handler in handlers] == ["report/build"]


async def test_an_older_build_changes_no_schedule(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly("new"), build="2"))
    assert (await register(timetable.http.worker, nightly("old"), build="1")).json()["code"] == "WORKER_ID_CONFLICT"
    assert await names(timetable) == ["new"]
    read(await register(timetable.http.worker, nightly("old"), build="1", replace=True))
    assert await names(timetable) == ["old"]


async def test_a_narrowed_key_needs_may_schedule(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly()))
    key = await timetable.http.make_key("task-worker", types=["report/*"])
    narrowed = timetable.http.use(key)
    refused = await register(narrowed, nightly())
    assert (refused.status_code, refused.json()["code"]) == (403, "SCOPE_DENIED")
    read(await register(narrowed))  # and without, it leaves those that are there alone
    assert await names(timetable) == ["nightly"]
    key = await timetable.http.make_key("task-worker", types=["report/*"], pools=["default"], maySchedule=True)
    may = timetable.http.use(key)
    read(await register(may, nightly("mine")))
    assert await names(timetable) == ["mine"]
    for outside in (nightly("other", type="mail/send"), nightly("other", pool="gpu")):
        answer = await register(may, outside)
        assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED")
    assert await names(timetable) == ["mine"]


async def test_removing_the_worker_removes_its_schedules(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly()))
    read(await timetable.http.worker.delete("/v1/workers/reporter/instances/one"))
    assert await names(timetable) == ["nightly"]  # the end of a process leaves the registration
    read(await timetable.http.operator.delete("/v1/workers/reporter"))
    assert await names(timetable) == []


async def test_ten_processes_register_at_once_while_it_is_due(timetable: Timetable) -> None:
    read(await register(timetable.http.worker, nightly(everySeconds=60)))
    timetable.clock.advance(60)
    answers = await asyncio.gather(
        *(register(timetable.http.worker, nightly(everySeconds=90), instanceId=f"process-{n}") for n in range(10)),
        *(timetable.fire() for _ in range(3)),
    )
    assert [a.status_code for a in answers if isinstance(a, httpx.Response)] == [200] * 10
    assert await timetable.due() == ["2026-03-02T10:31"]
    assert (await timetable.get(owner="reporter"))["nextDueAt"] == "2026-03-02T10:32:30.000000Z"
