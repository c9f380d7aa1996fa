"""Workers, task types, doctor, config, metrics and health as people and programs see them (protocol.md §4, §9)."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from interlock_core import leases
from interlock_core.db import Database
from interlock_core.settings import Settings
from support.api import Http
from support.clock import Clock
from support.dev_service import ROOT
from support.hosts import chosen
from support.play import Play

Json = dict[str, Any]


async def walk(http: Http, path: str, size: int) -> list[Json]:
    """All items of a list, page by page; the walk must end."""
    items: list[Json] = []
    cursor: str | None = None
    for _ in range(100):
        answer = await http.operator.get(path, params={"limit": size} | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["nextCursor"]
        if cursor is None:
            return items
    raise AssertionError("the walk does not end")


async def state_of(play: Play, worker_id: str = "tester") -> str:
    state: str = (await play.http.operator.get(f"/v1/workers/{worker_id}")).json()["state"]
    return state


async def test_the_states_of_a_worker_in_words(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    assert await state_of(play) == "full"
    view = (await play.http.operator.get("/v1/workers/tester")).json()
    assert (view["registered"], view["slots"], view["used"]) == (False, 1, 1)
    (held,) = view["attempts"]
    assert (held["taskId"], held["attemptId"], held["number"]) == (attempt["taskId"], attempt["attemptId"], 1)
    await play.complete(attempt)
    assert await state_of(play) == "ready"
    await play.http.worker.post("/v1/attempts/heartbeat", json={"workerId": "tester", "instanceId": "one", "draining": True})
    assert await state_of(play) == "draining"
    await play.claim(instance="two")
    assert await state_of(play) == "ready"
    clock.advance(400)
    view = (await play.http.operator.get("/v1/workers/tester")).json()
    assert (view["state"], view["slots"], {i["state"] for i in view["instances"]}) == ("offline", 0, {"offline"})
    missing = await play.http.operator.get("/v1/workers/nobody")
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


async def test_a_task_type_tells_its_queue_and_who_serves_it(play: Play, clock: Clock) -> None:
    await play.http.worker.put(
        "/v1/workers/tester",
        json={"instanceId": "one", "slots": 3, "handlers": [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}]},
    )
    key = {"key": "k", "limit": 1}
    await play.submit(concurrency=key, priority=1)
    (running,) = await play.claim()
    await play.submit(concurrency=key)
    await play.submit(delaySeconds=60)
    await play.submit()
    lost = await play.run(safety="non-idempotent", priority=9)
    await play.complete(lost, "unknown", error={"message": "sent, no answer"})
    clock.advance(10)
    view = (await play.http.producer.get("/v1/task-types/demo/hello/1")).json()
    names = ("registered", "queued", "ready", "notDue", "blocked", "running", "waiting", "outcomeUnknown")
    assert [view[name] for name in names] == [True, 3, 1, 1, 1, 1, 0, 1]
    assert 10 <= view["oldestDueAgeSeconds"] < 20
    assert view["online"] == {"instances": 1, "slots": 3, "used": 1, "free": 2}
    assert [(h["workerId"], h["effectSafety"]) for h in view["handlers"]] == [("tester", "pure")]
    await play.complete(running)
    clock.advance(120)
    await play.sweep()
    view = (await play.http.producer.get("/v1/task-types/demo/hello/1")).json()
    assert view["outcomes"]["hour"] == {"succeeded": 1, "failed": 0, "cancelled": 0}
    assert view["runSeconds"]["p50"] >= 10
    assert view["waitSeconds"]["p95"] is not None
    clock.advance(7200)
    outcomes = (await play.http.producer.get("/v1/task-types/demo/hello/1")).json()["outcomes"]
    assert (outcomes["hour"]["succeeded"], outcomes["day"]["succeeded"]) == (0, 1)


async def test_a_type_that_nobody_registered_is_shown_while_it_has_tasks(play: Play) -> None:
    path = "/v1/task-types/demo/hello/1"
    unknown = await play.http.operator.get(path)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "TASK_TYPE_NOT_FOUND")
    await play.submit(delaySeconds=9)
    assert (await play.http.operator.get(path)).json()["registered"] is False
    stranger = play.http.use((await play.http.make_keys("other"))["operator"])
    assert (await stranger.get(path)).status_code == 404
    for project_list in ("/v1/task-types", "/v1/workers"):
        assert (await stranger.get(project_list)).json()["items"] == []
    for bad in ("demo/hello/0", "demo/hello/x", "demo/hello/99999999999", "demo/-/1"):
        assert (await play.http.operator.get(f"/v1/task-types/{bad}")).status_code == 400
    for bad in ("?x=1", "?limit=0", "?limit=201", "?limit=ten"):
        assert (await play.http.operator.get(f"/v1/task-types{bad}")).status_code == 400


async def test_b44_lists_of_types_and_workers_show_each_once(play: Play) -> None:
    for number in range(5):
        handlers = [{"type": f"t{number}/{name}", "schemaVersion": v, "effectSafety": "pure"} for name in "ab" for v in (1, 2)]
        answer = await play.http.worker.put(f"/v1/workers/w{number}", json={"instanceId": "i", "handlers": handlers})
        assert answer.status_code == 200
    for name, options in (("ready", {}), ("later", {"delaySeconds": 60}), ("keyed", {"concurrency": {"key": "k", "limit": 1}})):
        await play.submit(type=f"unserved/{name}", **options)
        await play.submit(type=f"unserved/{name}", schemaVersion=2, **options)
    await play.claim(instance="unregistered")
    wanted = sorted([(f"t{n}/{name}", v) for n in range(5) for name in "ab" for v in (1, 2)])
    wanted += sorted((f"unserved/{name}", v) for name in ("ready", "later", "keyed") for v in (1, 2))
    for size in (1, 7, 50):
        types = await walk(play.http, "/v1/task-types", size)
        assert [(item["type"], item["schemaVersion"]) for item in types] == wanted
        workers = await walk(play.http, "/v1/workers", size)
        assert [item["workerId"] for item in workers] == ["tester", "w0", "w1", "w2", "w3", "w4"]


async def test_no_finished_task_is_read_for_an_overview(http: Http, database_url: str) -> None:
    from interlock_core import overview

    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tasks (id, project, type, schema_version, pool, status, priority, input, created_at, due_at, finished_at,"
            " effect_scope) SELECT gen_random_uuid(), 'test', 'done/' || n % 50, 1, 'default', 'succeeded', 0, '1', now(), now(), now(),"
            " gen_random_uuid() FROM generate_series(1, 50000) n"
        )
        connection.execute("ANALYZE tasks")
        names = overview.names_json([("done/1", 1)])
        for step in (
            overview.sql.type_names(project="test", after_type="", after_version=0, limit=51),
            overview.sql.type_facts(project="test", names=names),
            overview.sql.outbox(project="test", offline_seconds=45),
            overview.sql.instances_of(project="test", ids=["w"], offline_seconds=45),
            overview.sql.queues(project="test", names=names, pools=None),
        ):
            rows = connection.execute("EXPLAIN " + step.text, step.params).fetchall()  # type: ignore[arg-type]
            plan = "\n".join(row[0] for row in rows)
            assert "Seq Scan on tasks" not in plan, plan
            assert "tasks_list" not in plan, plan


async def test_the_doctor_names_the_debts(
    play: Play, clock: Clock, database: Database, database_url: str, request: pytest.FixtureRequest
) -> None:
    clean = (await play.http.operator.get("/v1/doctor")).json()
    assert (clean["queueDepth"], clean["oldestDueAgeSeconds"], clean["onlineWorkers"]) == (0, None, 0)
    lag = clean["streamLagSeconds"] if chosen(request.config) == "dev" else None  # the one host that is the stream too
    assert (clean["schemaVersion"][:5], clean["epoch"], clean["lastSweepAt"], clean["streamLagSeconds"]) == (
        max(path.name for path in (ROOT / "migrations").iterdir())[:5],
        1,
        None,
        lag,
    )
    assert abs(clean["hostClockDriftSeconds"]) < 5
    await play.run()
    await play.submit(type="demo/other")
    clock.advance(120)
    # a worker with a free slot is online, and yet nobody took what is due
    await play.http.worker.put(
        "/v1/workers/idle",
        json={"instanceId": "i", "slots": 1, "handlers": [{"type": "demo/other", "schemaVersion": 1, "effectSafety": "pure"}]},
    )
    with psycopg.connect(database_url, application_name="forgotten") as idle:
        idle.execute("SELECT 1")
        found = (await play.http.producer.get("/v1/doctor")).json()
    assert found["debts"]["expiredLeases"] == 1
    assert found["debts"]["outbox"]["dueWithFreeSlot"] == 1
    assert found["debts"]["outbox"]["oldestSeconds"] > 100
    assert (found["queueDepth"], found["onlineWorkers"]) == (1, 1)
    assert found["oldestTransactionSeconds"] >= 0
    assert found["oldestTransaction"]["application"] == "forgotten"
    assert found["hostClockDriftSeconds"] < -100  # the database's clock was moved ahead of this host's
    await play.sweep()
    await leases.retain(database, Settings())
    swept = (await play.http.operator.get("/v1/doctor")).json()
    assert swept["debts"]["expiredLeases"] == 0
    assert swept["lastSweepAt"] is not None
    assert swept["lastRetentionAt"] is not None


async def test_the_doctor_counts_what_retention_owes(play: Play, clock: Clock) -> None:
    await play.complete(await play.run())
    assert (await play.http.operator.get("/v1/doctor")).json()["debts"]["retentionBacklog"] == 0
    clock.advance(8 * 86400)
    assert (await play.http.operator.get("/v1/doctor")).json()["debts"]["retentionBacklog"] == 1


async def test_a_worker_key_sees_itself_and_the_queues_of_its_types(play: Play) -> None:
    for name in ("audio/cut", "video/cut"):
        await play.submit(type=name)
    await play.submit(type="audio/cut", pool="gpu")
    for worker_id, name in (("cutter", "audio/cut"), ("other", "video/cut")):
        handlers = [{"type": name, "schemaVersion": 1, "effectSafety": "pure"}]
        await play.http.worker.put(f"/v1/workers/{worker_id}", json={"instanceId": "i", "handlers": handlers})
    key = await play.http.make_key("task-worker", types=["audio/*"], pools=["default"], workerIds=["cutter"])
    narrow = play.http.use(key)
    found = (await narrow.get("/v1/doctor")).json()
    assert [w["workerId"] for w in found["workers"]] == ["cutter"]
    assert [(q["type"], q["pool"], q["queued"]) for q in found["queues"]] == [("audio/cut", "default", 1)]
    assert found["key"]["types"] == ["audio/*"]
    assert "debts" not in found
    assert (await narrow.get("/v1/doctor?workerId=other")).status_code == 403
    free = (await play.http.worker.get("/v1/doctor?workerId=other")).json()
    assert [q["type"] for q in free["queues"]] == ["video/cut"]
    assert len((await play.http.worker.get("/v1/doctor")).json()["queues"]) == 3


async def test_config_tells_clients_what_they_need(http: Http) -> None:
    for client in (http.producer, http.worker, http.operator, http.metrics, http.admin):
        found = (await client.get("/v1/config")).json()
        assert set(found) == {"streamUrl", "pollSeconds", "features", "limits", "version", "epoch"}
    assert (found["streamUrl"], found["pollSeconds"], found["epoch"]) == (None, 5, 1)
    limits = found["limits"]
    assert (limits["valueBytes"], limits["requestBytes"], limits["encodedRequestBytes"]) == (262_144, 5 * 2**20, 4 * 2**20)
    assert (limits["submitsPerBatch"], limits["slotsPerClaim"], limits["attemptsPerReport"]) == (1000, 100, 200)
    assert (limits["leaseSeconds"], limits["minLeaseSeconds"], limits["offlineSeconds"]) == (60, 10, 45)
    assert (limits["pollSeconds"], limits["streamPollSeconds"], limits["idlePollSeconds"]) == (5, 30, 60)
    assert (limits["retentionSeconds"], limits["textBytes"], limits["logLinesPerAttempt"]) == (7 * 86400, 16_384, 10_000)


async def test_metrics_are_prometheus_text(play: Play) -> None:
    await play.http.worker.put(
        "/v1/workers/tester",
        json={
            "instanceId": "one",
            "pool": 'a"b\\',
            "handlers": [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}],
        },
    )
    await play.submit()
    for client in (play.http.operator, play.http.metrics):
        answer = await client.get("/v1/metrics")
        assert answer.status_code == 200
    assert re.fullmatch(r"text/plain; version=0\.0\.4(; charset=utf-8)?", answer.headers["content-type"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    lines = answer.text.splitlines()
    assert 'interlock_tasks{type="demo/hello",version="1",state="ready"} 1' in lines
    assert 'interlock_slots{type="demo/hello",version="1",pool="a\\"b\\\\",use="free"} 1' in lines
    assert "interlock_queue_depth 1" in lines
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? -?\d+(\.\d+)?')
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


@pytest.mark.in_process
async def test_healthz_does_not_ask_the_database_and_readyz_does(http: Http, database_url: str) -> None:
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    http._app.state.database = Database("postgresql://nobody@127.0.0.1:1/none")
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    down = await http.get("/readyz")
    assert (down.status_code, down.json()["code"], down.json()["retryable"]) == (503, "UNAVAILABLE", True)
    assert int(down.headers["retry-after"]) >= 1
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP TABLE service")
    http._app.state.database = empty = Database(database_url)
    unmigrated = await http.get("/readyz")
    assert (unmigrated.status_code, unmigrated.json()["code"]) == (503, "UNAVAILABLE")
    await empty.close()


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/v1/tasks/x/y/z"])
async def test_an_unknown_path_is_a_problem_too(http: Http, path: str) -> None:
    answer = await http.operator.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert "/openapi.json" in answer.json()["next"]
    assert answer.json()["requestId"] == answer.headers["x-request-id"]


async def test_another_method_is_told_which_are_allowed(http: Http) -> None:
    answer = await http.operator.patch("/v1/workers/w")
    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert "GET" in answer.headers["allow"]


async def test_a_paused_project_makes_no_types_known(play: Play) -> None:
    path = "/v1/task-types/demo/unheard-of/1"
    await play.http.operator.post("/v1/project/pause", json={})
    answer = await play.http.producer.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "TASK_TYPE_NOT_FOUND")
    await play.http.operator.post(f"{path}/pause", json={})
    assert (await play.http.producer.get(path)).json()["paused"] is True
