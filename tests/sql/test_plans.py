"""Claims, reports and sweeps beside many settled and delayed rows: the plans, not the time (B40)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from interlock_core import leases
from interlock_core.settings import Settings
from sql.explained import Explained
from sql.rows import Rows
from support.play import Play

TYPES = 50
SIZES = [
    pytest.param(0, 0, False, id="empty"),  # the plans that a connection keeps while the tables grow
    pytest.param(8_000, 2_000, True, id="analyzed"),
    pytest.param(8_000, 2_000, False, id="never-analyzed"),
    pytest.param(200_000, 50_000, True, marks=[pytest.mark.slow, pytest.mark.timeout(300)], id="large"),
]
CLAIM = ("claim.enter", "claim.remember", "expire.lapsed", "promote.due", "claim.lock_keys", "claim.pick", "claim.outlook")


def _fill(rows: Rows, settled: int, delayed: int, analyzed: bool) -> None:
    a_type = {"type": f"'type/n' || n % {TYPES}"}
    rows.all("ALTER TABLE tasks SET (autovacuum_enabled = false)")
    old = {"created_at": "app_now() - interval '3 days'", "finished_at": "app_now() - interval '2 days'"}
    rows.fill(settled, **a_type, status="'succeeded'", **old)
    rows.fill(delayed, **a_type, hold="'due'", due_at="app_now() + interval '1 month'")
    rows.fill(10, **a_type, due_at="app_now() - interval '1 second'")
    if analyzed:
        rows.all("ANALYZE tasks")


def _handlers(count: int = TYPES) -> list[dict[str, Any]]:
    return [{"type": f"type/n{n}", "schemaVersion": 1, "effectSafety": "pure"} for n in range(count)]


def _check(explained: Explained, names: Iterable[str], rows: int, blocks: int) -> None:
    """These statements touched no more than that, and read tasks by its indexes only."""
    wrong = []
    for name in names:
        plan = explained.plan(name)
        if "tasks" in plan.scanned or plan.rows > rows or plan.blocks > blocks:
            wrong.append((name, plan.scanned, plan.indexes, plan.rows, plan.widest, plan.blocks))
    assert wrong == [], wrong


@pytest.mark.parametrize(("settled", "delayed", "analyzed"), SIZES)
async def test_b40_claims_and_reports_read_what_is_ready_and_nothing_else(
    play: Play, rows: Rows, explained: Explained, settled: int, delayed: int, analyzed: bool
) -> None:
    _fill(rows, settled, delayed, analyzed)
    play.http._app.state.database = explained
    attempts = await play.claim(slots=10, handlers=_handlers())
    assert len(attempts) == 10
    assert "tasks_ready" in explained.plan("claim.pick").indexes
    assert "tasks_due" in explained.plan("promote.due").indexes
    _check(explained, CLAIM, rows=200, blocks=700)
    assert await play.claim(slots=10, handlers=_handlers()) == []  # an empty claim likewise
    _check(explained, CLAIM, rows=200, blocks=700)
    assert await play.claim(slots=10, handlers=_handlers(1)) == []
    _check(explained, CLAIM, rows=50, blocks=60)

    await play.heartbeat(attempts[0], progress={"percent": 5})
    await play.complete(attempts[0], result=1)
    await play.release(attempts[1])
    await play.cancel(attempts[2]["taskId"])
    await play.submit(type="type/n1", idempotencyKey="k", concurrency={"key": "K", "limit": 2})
    reports = ("heartbeat.renew", "complete.lock", "complete.settle", "release.settle", "cancel.cancel", "tasks.view")
    _check(explained, reports, rows=20, blocks=80)
    _check(explained, ("submit.reserve", "submit.insert", "admit.admit"), rows=20, blocks=120)


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("handlers", [1, TYPES])
async def test_b40_a_backlog_of_ready_or_waiting_work_costs_a_claim_nothing(
    play: Play, rows: Rows, explained: Explained, handlers: int, analyzed: bool
) -> None:
    _fill(rows, 0, 0, False)
    rows.fill(6_000, type=f"'type/n' || n % {handlers}", due_at="app_now() - interval '1 second'")
    asleep = {"wait": """'{"name": "w", "signal": null, "children": null}'""", "wake_at": "app_now() + interval '1 hour'"}
    rows.fill(6_000, type=f"'type/n' || n % {handlers}", status="'waiting'", **asleep)
    if analyzed:
        rows.all("ANALYZE tasks")
    play.http._app.state.database = explained
    attempts = await play.claim(slots=10, handlers=_handlers(handlers))
    assert len(attempts) == 10
    _check(explained, CLAIM, rows=20 * handlers + 100, blocks=700 + 20 * handlers)
    await play.complete(attempts[0], "suspended", wait={"name": "w", "signal": "s"})
    body = {"name": "s", "payload": 1, "signalKey": "k"}
    assert (await play.http.producer.post(f"/v1/tasks/{attempts[0]['taskId']}/signals", json=body)).status_code == 201
    _check(explained, ("complete.settle", "resume.resume", "signal.signal"), rows=20, blocks=80)
    await play.sweep()
    _check(explained, ("resume.groups", "ends.untold", "ends.cascades"), rows=3 * handlers + 10, blocks=20 * handlers + 50)


@pytest.mark.parametrize(("settled", "delayed", "analyzed"), SIZES)
async def test_b40_a_sweep_reads_what_is_due_and_nothing_else(
    play: Play, rows: Rows, explained: Explained, settled: int, delayed: int, analyzed: bool
) -> None:
    _fill(rows, settled, delayed, analyzed)
    rows.fill(20, type="'type/late'", start_deadline_at="app_now() - interval '1 second'", start_deadline_seconds="1")
    rows.fill(20, type="'type/due'", hold="'due'", due_at="app_now() - interval '1 second'")
    rows.fill(20, type="'type/wait'", due_at="app_now() - interval '2 days'", created_at="app_now() - interval '3 days'")
    lapsed = {"attempt_id": "gen_random_uuid()", "token_hash": "'\\x00'", "fence": "1", "started_at": "app_now()"}
    policy = {"max_attempts": "5", "initial_delay_seconds": "1", "multiplier": "2", "max_delay_seconds": "9", "jitter": "0"}
    ended = {"status": "'running'", "lease_expires_at": "app_now() - interval '1 second'", "effect_safety": "'pure'"}
    rows.fill(20, type="'type/lapsed'", **ended, **lapsed, **policy)
    rows.all("UPDATE service SET rolled_up_to = app_now() - interval '1 minute'")
    done = await leases.sweep(explained, Settings())
    assert {name: done[name] for name in ("promoted", "lapsed", "lateStarts", "waitLimit")} == {
        "promoted": 20,
        "lapsed": 20,
        "lateStarts": 20,
        "waitLimit": 20,
    }
    names = {name for name, _ in explained.plans if not name.startswith("hints.")}
    assert names >= {"promote.groups", "promote.due", "expire.groups", "expire.lapsed", "sweep.roll_up", "admit.stranded"}
    names.remove("expire.groups")  # reads what is running, which is never many
    _check(explained, sorted(names), rows=500, blocks=1500)


@pytest.mark.parametrize(("settled", "delayed", "analyzed"), SIZES[1:2])
async def test_b40_lists_read_one_page(
    play: Play, rows: Rows, explained: Explained, settled: int, delayed: int, analyzed: bool
) -> None:
    _fill(rows, settled, delayed, analyzed)
    some = "SELECT id FROM tasks WHERE finished_at IS NOT NULL LIMIT 30"
    rows.all(f"UPDATE tasks SET status = 'failed', failure = '{{}}' WHERE id IN ({some})")
    play.http._app.state.database = explained
    key = (await play.submit(idempotencyKey="k"))["idempotencyKey"]
    for query in ("", "?status=failed", "?status=failed&status=outcome-unknown", f"?idempotencyKey={key}", "?limit=200"):
        answer = await play.http.producer.get(f"/v1/tasks{query}")
        assert answer.status_code == 200, answer.text
        _check(explained, ["tasks.page"], rows=500, blocks=900)


@pytest.mark.parametrize(("settled", "delayed", "analyzed"), SIZES)
async def test_b40_overviews_never_read_what_is_settled(
    play: Play, rows: Rows, explained: Explained, settled: int, delayed: int, analyzed: bool
) -> None:
    _fill(rows, settled, delayed, analyzed)
    play.http._app.state.database = explained
    await play.claim(slots=5, handlers=_handlers())
    metrics = await play.http.metrics.get("/v1/metrics")
    assert metrics.status_code == 200, metrics.text
    for path in ("/v1/task-types", "/v1/task-types/type/n1/1", "/v1/workers", "/v1/workers/tester", "/v1/doctor"):
        explained.plans.clear()
        answer = await play.http.operator.get(path)
        assert answer.status_code in (200, 404), answer.text
        names = sorted({name for name, _ in explained.plans})
        _check(explained, names, rows=delayed + 500, blocks=delayed + 2_000)
