"""Schedules over HTTP: putting, reading, listing, pausing, removing (protocol.md §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.play import Play
from support.timetable import Timetable, read

Json = dict[str, Any]
NOON: Json = {"cron": "0 12 * * *", "timeZone": "Europe/Berlin"}  # 11:00 UTC, half an hour from the timetable's clock


async def test_a_schedule_fires_a_task_at_its_instant(timetable: Timetable) -> None:
    answer = await timetable.put_raw(**NOON, input={"n": 1}, tags={"a": "b"}, priority=7)
    assert answer.status_code == 201
    schedule = answer.json()
    assert schedule["nextFirings"] == [f"2026-03-0{day}T11:00:00.000000Z" for day in range(2, 7)]
    assert schedule["nextDueAt"] == schedule["nextFirings"][0]
    assert (schedule["owner"], schedule["overlap"], schedule["catchUp"], schedule["paused"]) == (None, "allow", "last", False)
    assert (await timetable.fire())["fired"] == 0
    assert (await timetable.tick(1800))["fired"] == 1
    assert (await timetable.fire())["fired"] == 0
    [task] = await timetable.tasks()
    assert (task["dueAt"], task["scheduleName"], task["scheduleOwner"]) == ("2026-03-02T11:00:00.000000Z", "nightly", None)
    assert (task["priority"], task["tags"], task["status"]) == (7, {"a": "b"}, "queued")
    journal = read(await timetable.http.producer.get(f"/v1/tasks/{task['id']}/journal"))["items"]
    assert [event["kind"] for event in journal] == ["submitted"]
    assert (journal[0]["data"]["scheduleName"], journal[0]["data"]["dueAt"]) == ("nightly", task["dueAt"])
    after = await timetable.get()
    assert after["nextDueAt"] == "2026-03-03T11:00:00.000000Z"
    assert after["lastFiring"] == {
        "dueAt": task["dueAt"],
        "at": "2026-03-02T11:00:00.000000Z",
        "outcome": "fired",
        "taskId": task["id"],
        "missed": 0,
    }
    assert (after["fired"], after["skipped"], after["missed"], after["input"]) == (1, 0, 0, {"n": 1})


async def test_the_task_of_a_firing_is_as_its_submit_would_be(timetable: Timetable, play: Play) -> None:
    options: Json = {
        "retry": {"maxAttempts": 2, "initialDelaySeconds": 3, "multiplier": 4, "maxDelaySeconds": 50, "jitter": 0},
        "startDeadlineSeconds": 900,
        "timeoutSeconds": 70,
        "leaseSeconds": 30,
        "concurrency": {"key": "K", "limit": 1},
        "pool": "gpu",
        "priority": -3,
        "tags": {"order": "17"},
        "trace": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    }
    text = '{"z": 1.10, "a": 123456789012345678901234567890, "e": 1E2, "u": "\\u0000"}'
    body = '{"type": "demo/hello", "schemaVersion": 1, "cron": "0 11 * * *", "input": ' + text + "}"
    plain = await timetable.http.producer.put("/v1/schedules/exact", content=body, headers={"content-type": "application/json"})
    assert text in plain.text
    schedule = await timetable.put(**NOON, **options)
    for name, value in options.items():
        assert schedule[name] == (value | {"tracestate": None} if name == "trace" else value)
    await timetable.tick(1800)
    [task] = [await play.get(task["id"]) for task in await timetable.tasks()]
    submitted = await play.submit(**options)
    differing = {name for name in task if task[name] != submitted[name]}
    assert differing <= {"id", "dueAt", "createdAt", "effectScope", "scheduleName", "waiting", "warnings", "startDeadlineSeconds"}
    [exact] = await timetable.tasks("exact")
    assert text in (await timetable.http.producer.get(f"/v1/tasks/{exact['id']}")).text


async def test_a_repeated_put_changes_nothing(timetable: Timetable) -> None:
    first = await timetable.put(**NOON, input={"a": 1, "b": 2})
    timetable.clock.advance(60)
    again = await timetable.put_raw(**NOON, input={"b": 2.0, "a": 1}, overlap="allow", pool="default")
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert {**again.json(), "duplicate": False} == first


async def test_ten_equal_puts_at_once_make_one_schedule(timetable: Timetable) -> None:
    answers = await asyncio.gather(*(timetable.put_raw(**NOON) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert sum(not answer.json()["duplicate"] for answer in answers) == 1


async def test_a_changed_rule_starts_anew_and_any_other_change_keeps_the_next_instant(timetable: Timetable) -> None:
    first = await timetable.put(everySeconds=3600)
    timetable.clock.advance(600)
    other = await timetable.put(everySeconds=3600, priority=5, input={"x": 1}, overlap="skip", catchUp="all", type="demo/other")
    assert (other["nextDueAt"], other["priority"], other["type"]) == (first["nextDueAt"], 5, "demo/other")
    retimed = await timetable.put(everySeconds=1800)
    assert retimed["nextDueAt"] == "2026-03-02T11:10:00.000000Z"
    assert (await timetable.put(**NOON))["nextDueAt"] == "2026-03-02T11:00:00.000000Z"
    assert (await timetable.put(cron="0 12 * * *"))["nextDueAt"] == "2026-03-02T12:00:00.000000Z"


async def test_what_is_due_is_fired_by_the_old_rule_before_the_rule_changes(timetable: Timetable) -> None:
    await timetable.put(**NOON, input={"old": True})
    timetable.clock.advance(1830)
    changed = await timetable.put(cron="0 15 * * *", input={"old": False})
    assert changed["nextDueAt"] == "2026-03-02T15:00:00.000000Z"
    assert await timetable.due() == ["2026-03-02T11:00"]
    assert (await timetable.fire())["fired"] == 0


async def test_a_change_beside_the_rule_does_not_fire_and_loses_no_firing(timetable: Timetable) -> None:
    await timetable.put(**NOON)
    timetable.clock.advance(1830)
    await timetable.put(**NOON, priority=9)
    assert await timetable.due() == []
    assert (await timetable.fire())["fired"] == 1
    assert [task["priority"] for task in await timetable.tasks()] == [9]


async def test_a_pause_is_kept_by_puts_and_resuming_never_catches_up(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    paused = await timetable.act("pause")
    assert (paused["paused"], paused["pausedAt"], paused["duplicate"]) == (True, "2026-03-02T10:30:00.000000Z", False)
    assert (await timetable.act("pause"))["duplicate"] is True
    assert (await timetable.tick(3 * 3600 + 30))["fired"] == 0
    assert (await timetable.put(everySeconds=60))["paused"] is True
    assert (await timetable.put(everySeconds=60, priority=1))["paused"] is True
    assert (await timetable.get())["nextDueAt"] == "2026-03-02T13:31:00.000000Z"  # if it were resumed now
    resumed = await timetable.act("resume")
    assert (resumed["paused"], resumed["nextDueAt"]) == (False, "2026-03-02T13:31:00.000000Z")
    assert (await timetable.act("resume"))["duplicate"] is True
    assert (await timetable.fire())["fired"] == 0
    assert (await timetable.tick(30))["fired"] == 1
    assert await timetable.due() == ["2026-03-02T13:31"]
    assert (await timetable.get())["missed"] == 0


async def test_a_changed_rule_of_a_paused_schedule_fires_nothing(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    await timetable.act("pause")
    timetable.clock.advance(3600)
    changed = await timetable.put(everySeconds=120)
    assert (changed["paused"], changed["nextDueAt"]) == (True, "2026-03-02T11:32:00.000000Z")
    assert await timetable.due() == []


async def test_owners_never_collide(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60, input="api")
    await timetable.put(owner="reporter", everySeconds=60, input="reporter")
    await timetable.put(owner="other", everySeconds=90, input="other")
    assert [(await timetable.get(owner=owner))["input"] for owner in (None, "reporter", "other")] == ["api", "reporter", "other"]
    await timetable.tick(60)
    tasks = await timetable.tasks()
    assert sorted(task["scheduleOwner"] or "" for task in tasks) == ["", "reporter"]
    assert len(await timetable.tasks(scheduleOwner="reporter")) == 1
    removed = await timetable.http.producer.delete("/v1/schedules/nightly", params={"owner": "reporter"})
    assert removed.json() == {"name": "nightly", "owner": "reporter", "removed": True, "duplicate": False}
    assert (await timetable.get())["input"] == "api"


async def test_a_removed_schedule_fires_no_more_and_its_tasks_go_on(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    await timetable.tick(60)
    first = await timetable.http.producer.delete("/v1/schedules/nightly")
    again = await timetable.http.producer.delete("/v1/schedules/nightly")
    assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
    assert (await timetable.http.producer.get("/v1/schedules/nightly")).json()["code"] == "NOT_FOUND"
    await timetable.tick(600)
    assert [task["status"] for task in await timetable.tasks()] == ["queued"]


async def test_a_list_is_by_owner_and_name_in_pages(timetable: Timetable) -> None:
    for owner, name in ((None, "b"), (None, "a"), ("w", "a"), ("v", "z")):
        await timetable.put(name, owner=owner, everySeconds=60)
    found: list[tuple[str | None, str]] = []
    cursor: str | None = None
    while True:
        page = read(
            await timetable.http.operator.get("/v1/schedules", params={"limit": 1, **({"cursor": cursor} if cursor else {})})
        )
        found += [(item["owner"], item["name"]) for item in page["items"]]
        assert all("input" not in item and len(item["nextFirings"]) == 5 for item in page["items"])
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert found == [(None, "a"), (None, "b"), ("v", "z"), ("w", "a")]
    assert [s["name"] for s in read(await timetable.http.producer.get("/v1/schedules?owner=w"))["items"]] == ["a"]
    wrong = await timetable.http.producer.get("/v1/schedules", params={"cursor": "x"})
    assert wrong.json()["code"] == "INVALID_CURSOR"


WRONG: list[tuple[Json, str]] = [
    ({}, ""),
    ({"cron": "* * * * *", "everySeconds": 60}, ""),
    ({"everySeconds": 60, "timeZone": "UTC"}, ""),
    ({"everySeconds": 0}, "/everySeconds"),
    ({"everySeconds": 0.5}, "/everySeconds"),
    ({"everySeconds": "60"}, "/everySeconds"),
    ({"cron": ""}, "/cron"),
    ({"cron": "0 0 30 2 *"}, "/cron"),
    ({"cron": "* * * * *" + " *" * 300}, "/cron"),
    ({"cron": "* * * * *", "timeZone": ""}, "/timeZone"),
    ({"cron": "* * * * *", "timeZone": "Mars/Base"}, "/timeZone"),
    ({"cron": "* * * * *", "overlap": "queue"}, "/overlap"),
    ({"cron": "* * * * *", "catchUp": "some"}, "/catchUp"),
    ({"cron": "* * * * *", "idempotencyKey": "k"}, "/idempotencyKey"),
    ({"cron": "* * * * *", "runAt": "2030-01-01T00:00:00Z"}, "/runAt"),
    ({"cron": "* * * * *", "delaySeconds": 5}, "/delaySeconds"),
    ({"cron": "* * * * *", "leaseSeconds": 5}, "/leaseSeconds"),
    ({"cron": "* * * * *", "schemaVersion": 0}, "/schemaVersion"),
    ({"cron": "* * * * *", "timezone": "UTC"}, "/timezone"),
    ({"cron": "* * * * *", "retry": {"maxAttempts": 0}}, "/retry/maxAttempts"),
]


@pytest.mark.parametrize(("fields", "pointer"), WRONG)
async def test_a_wrong_schedule_is_refused_naming_the_field(timetable: Timetable, fields: Json, pointer: str) -> None:
    answer = await timetable.put_raw(**fields)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), answer.text
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]
    assert (await timetable.http.producer.get("/v1/schedules")).json()["items"] == []


async def test_wrong_names_types_and_sizes_are_refused(timetable: Timetable) -> None:
    renamed = {"name": "other", "everySeconds": 60, "type": "a/b", "schemaVersion": 1, "input": {}}
    assert (await timetable.http.producer.put("/v1/schedules/n", json=renamed)).json()["errors"][0]["pointer"] == "/name"
    for name in ("-x", "a b", "x" * 129, "é"):
        answer = await timetable.put_raw(name, everySeconds=60)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), name
    assert (await timetable.put_raw(everySeconds=60, owner="a b")).json()["code"] == "INVALID_REQUEST"
    assert (await timetable.put_raw(everySeconds=60, type="a/b@1")).json()["code"] == "INVALID_TYPE"
    assert (await timetable.put_raw(everySeconds=60, input="x" * 300_000)).json()["code"] == "PAYLOAD_TOO_LARGE"
    missing = await timetable.http.producer.put("/v1/schedules/n", json={"everySeconds": 60, "type": "a/b", "schemaVersion": 1})
    assert missing.json()["errors"] == [{"pointer": "/input", "message": "is required"}]
    assert (await timetable.http.producer.get("/v1/schedules/n?ownr=x")).json()["code"] == "INVALID_REQUEST"
    for call in ("pause", "resume", "trigger"):
        assert (await timetable.http.producer.post(f"/v1/schedules/none/{call}", json={})).status_code == 404


async def test_a_narrowed_producer_schedules_its_types_only(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60, type="video/cut")
    narrowed = timetable.http.use(await timetable.http.make_key("task-producer", types=["audio/*"]))
    body = {"everySeconds": 60, "schemaVersion": 1, "input": {}}
    assert (await narrowed.put("/v1/schedules/mine", json={**body, "type": "audio/cut"})).status_code == 201
    refusals = [
        await narrowed.put("/v1/schedules/other", json={**body, "type": "video/cut"}),
        await narrowed.put("/v1/schedules/nightly", json={**body, "type": "audio/cut"}),
        await narrowed.delete("/v1/schedules/nightly"),
        *[await narrowed.post(f"/v1/schedules/nightly/{call}", json={}) for call in ("pause", "resume", "trigger")],
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in refusals] == [(403, "SCOPE_DENIED")] * 6


async def test_another_projects_schedule_does_not_exist(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    keys = await timetable.http.make_keys("elsewhere")
    stranger = timetable.http.use(keys["task-producer"])
    assert (await stranger.get("/v1/schedules/nightly")).status_code == 404
    assert (await stranger.post("/v1/schedules/nightly/trigger", json={})).status_code == 404
    assert (await stranger.delete("/v1/schedules/nightly")).json()["duplicate"] is True
    assert (await stranger.get("/v1/schedules")).json()["items"] == []
    assert (await timetable.get())["paused"] is False


async def test_who_did_what_is_in_the_audit_trail(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    await timetable.put(everySeconds=60)
    for call in ("pause", "pause", "resume", "trigger"):
        await timetable.http.producer.post(f"/v1/schedules/nightly/{call}", json={})
    await timetable.http.operator.delete("/v1/schedules/nightly")
    lines = read(await timetable.http.operator.get("/v1/audit"))["items"]
    mine = [line["action"] for line in reversed(lines) if line["action"].startswith("schedule-")]
    assert mine == ["schedule-put", "schedule-paused", "schedule-resumed", "schedule-triggered", "schedule-removed"]


async def test_a_schedule_that_is_made_again_has_fired_nothing_yet(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    assert (await timetable.tick(60))["fired"] == 1
    await timetable.http.producer.delete("/v1/schedules/nightly")
    made = await timetable.put(everySeconds=60)
    assert (made["fired"], made["lastFiring"]) == (0, None)
    await timetable.tick(60)
    assert (await timetable.get())["lastFiring"]["dueAt"] == "2026-03-02T10:32:00.000000Z"
