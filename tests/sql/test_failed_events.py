"""The journal's insert fails once: the task's row is unchanged too, and the repeat succeeds (B06)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from interlock_core.errors import Unavailable
from sql.rows import Rows
from support.clock import Clock
from support.play import Play, ids

TERMINAL = ("succeeded", "failed", "cancelled", "outcome-unknown")


def _fail_once(rows: Rows) -> None:
    """The next insert into the journal finds the disk full. A sequence counts, since it does not roll back."""
    rows.all("CREATE SEQUENCE inserts")
    rows.all(
        "CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('inserts') = 1 THEN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END IF; RETURN new; END $$"
    )
    rows.all("CREATE TRIGGER fail_once BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION fail_once()")


Call = Callable[[Play, dict[str, Any]], Awaitable[httpx.Response]]


def _report(kind: str, **fields: Any) -> Call:
    async def call(play: Play, attempt: dict[str, Any]) -> httpx.Response:
        list_name = "completions" if kind == "complete" else "attempts"
        body = {"workerId": "tester", "instanceId": "one", list_name: [{**ids(attempt), **fields}]}
        return await play.http.worker.post(f"/v1/attempts/{kind}", json=body)

    return call


async def _cancel(play: Play, attempt: dict[str, Any]) -> httpx.Response:
    return await play.cancel_raw(attempt["taskId"])


CALLS: dict[str, tuple[Call, str, str]] = {
    "complete": (_report("complete", outcome="succeeded", result=1), "succeeded", "succeeded"),
    "fail": (_report("complete", outcome="failed", error={"code": "BAD"}), "failed", "failed"),
    "unknown": (_report("complete", outcome="unknown", error={"code": "NO_ANSWER"}), "outcome-unknown", "outcome-unknown"),
    "retry": (_report("complete", outcome="retryable", error={"code": "BUSY"}), "queued", "retry-scheduled"),
    "release": (_report("release"), "queued", "released"),
    "progress": (_report("heartbeat", progress={"percent": 5}), "running", "progress"),
    "logs": (_report("heartbeat", logs=[{"seq": 1, "level": "info", "message": "hello"}]), "running", "log"),
    "cancel": (_cancel, "running", "cancel-requested"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_b06_a_transition_whose_event_fails_did_not_happen(play: Play, rows: Rows, name: str) -> None:
    call, status, kind = CALLS[name]
    attempt = await play.run()
    before = rows.task(attempt["taskId"])
    _fail_once(rows)
    answer = await call(play, attempt)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
    assert int(answer.headers["retry-after"]) >= 1
    assert rows.task(attempt["taskId"]) == before
    assert rows.kinds(attempt["taskId"]) == ["submitted", "claimed"]
    assert (await call(play, attempt)).status_code == 200
    await call(play, attempt)  # and again: a repeat adds nothing
    assert rows.task(attempt["taskId"])["status"] == status
    kinds = rows.kinds(attempt["taskId"])
    assert kinds[:3] == ["submitted", "claimed", kind]
    assert [k for k in kinds if k in TERMINAL] == ([status] if status in TERMINAL else [])


async def test_b06_a_submit_whose_event_fails_stored_nothing(play: Play, rows: Rows) -> None:
    _fail_once(rows)
    answer = await play.submit_raw(idempotencyKey="k", concurrency={"key": "K", "limit": 1})
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    assert rows.value("SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM idempotency)") == 0
    assert (await play.submit_raw(idempotencyKey="k", concurrency={"key": "K", "limit": 1})).status_code == 201


async def test_b06_a_cancel_of_queued_work_whose_event_fails_did_not_happen(play: Play, rows: Rows) -> None:
    task = await play.submit()
    _fail_once(rows)
    assert (await play.cancel_raw(task["id"])).status_code == 503
    assert rows.task(task["id"])["status"] == "queued"
    assert (await play.cancel(task["id"]))["status"] == "cancelled"
    assert rows.kinds(task["id"]) == ["submitted", "cancelled"]


async def test_b06_a_claim_whose_event_fails_leased_nothing(play: Play, rows: Rows) -> None:
    task = await play.submit(concurrency={"key": "K", "limit": 1})
    _fail_once(rows)
    body = play.claim_body()
    assert (await play.http.worker.post("/v1/claims", json=body)).status_code == 503
    assert (rows.task(task["id"])["status"], rows.kinds(task["id"])) == ("queued", ["submitted"])
    (attempt,) = (await play.http.worker.post("/v1/claims", json=body)).json()[
        "attempts"
    ]  # the same claimId: nothing was kept of it
    assert (attempt["taskId"], attempt["fence"]) == (task["id"], 1)


async def test_b06_a_sweep_whose_event_fails_settled_nothing(play: Play, rows: Rows, clock: Clock) -> None:
    attempt = await play.run()
    clock.advance(61)
    before = rows.task(attempt["taskId"])
    _fail_once(rows)
    with pytest.raises(Unavailable):
        await play.sweep()
    assert rows.task(attempt["taskId"]) == before
    assert (await play.sweep())["lapsed"] == 1
    assert rows.kinds(attempt["taskId"]) == ["submitted", "claimed", "lease-expired"]


async def test_b06_a_resolution_whose_event_fails_did_not_happen(play: Play, rows: Rows) -> None:
    attempt = await play.run()
    await play.complete(attempt, "unknown", error={"code": "NO_ANSWER"})
    _fail_once(rows)
    assert (await play.resolve_raw(attempt["taskId"], "succeeded", attempt["attemptId"], result=1)).status_code == 503
    assert rows.task(attempt["taskId"])["status"] == "outcome-unknown"
    assert (await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result=1))["duplicate"] is False
    assert rows.kinds(attempt["taskId"])[-2:] == ["resolved", "succeeded"]
