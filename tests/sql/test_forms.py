"""What a repeat is known by was stored by a release before this one: the forms that are hashed stay as they are (B36).

A difference here means that a client's repeat, sent across an upgrade, would be refused as another request. A new form takes a
new version (`canonical.VERSION`), and what was stored under the old one is still compared by it.
"""

from __future__ import annotations

from sql.rows import Rows
from support.play import Play

INPUT = {"é": "😀\uffff\u2028", "n": 9007199254740993, "f": [1.5, -0.0, 1e-7, 1e300], "o": {"b": None, "a": True}}
POLICY = {"maxAttempts": 3, "initialDelaySeconds": 0.5, "multiplier": 1.5, "maxDelaySeconds": 90, "jitter": 0.1}


async def test_b36_requests_are_known_by_the_form_of_the_releases_before(play: Play, rows: Rows) -> None:
    await play.submit(idempotencyKey="plain", input=INPUT)
    timing = {"leaseSeconds": 60, "timeoutSeconds": 100, "startDeadlineSeconds": 1e5}
    kept = {"priority": 5, "pool": "gpu", "tags": {"b": "2", "a": "ä"}, "concurrency": {"key": "k", "limit": 3}}
    await play.submit(idempotencyKey="policy", retry=POLICY, **timing, **kept)
    await play.submit(idempotencyKey="instant", runAt="2026-11-30T08:00:00.123456+05:30")
    await play.submit(idempotencyKey="delay", delaySeconds=1.5)
    assert dict(rows.all("SELECT key, left(encode(hash, 'hex'), 16) FROM idempotency")) == {
        "plain": "23047ecb48af0a5d",
        "policy": "079b31da1c548249",
        "instant": "dab6eec71776a210",
        "delay": "e27f0d807fa63c48",
    }


async def test_b36_reports_are_known_by_the_form_of_the_releases_before(play: Play, rows: Rows) -> None:
    error = {"code": "NO_BANK", "message": "the bank\nis away", "details": {"f": 1.0}}
    reports = {
        "succeeded": {"result": INPUT},
        "failed": {"error": error, "retryable": False},
        "unknown": {"error": error, "step": "charge"},
        "suspended": {"wait": {"name": "w", "signal": "go", "until": "2036-12-30T10:00:00+02:00"}, "orphanedSteps": ["a"]},
        "cancelled": {},
    }
    for outcome, fields in reports.items():
        attempt = await play.run(input=outcome, safety="non-idempotent" if outcome == "unknown" else "pure")
        assert "error" not in await play.complete(attempt, outcome, **fields)
    await play.release(await play.run(input="released"), reason="drain")
    found = rows.all(
        "SELECT t.input::json #>> '{}', left(encode(j.report_hash, 'hex'), 16) FROM journal j JOIN tasks t ON t.id = j.task_id"
        " WHERE j.report_hash IS NOT NULL"
    )
    assert dict(found) == {
        "succeeded": "35cd9ab64a4b8e74",
        "failed": "4ebaaef9365bf03f",
        "unknown": "b55a3c323f03f67a",
        "suspended": "92df0956c419b9e7",
        "cancelled": "0082fe8d70014900",
        "released": "6e6de7e64642ff45",
    }


async def test_b36_signals_and_schedules_are_known_by_the_form_of_the_releases_before(play: Play, rows: Rows) -> None:
    task = await play.submit()
    body = {"name": "go", "payload": INPUT, "signalKey": "s"}
    assert (await play.http.producer.post(f"/v1/tasks/{task['id']}/signals", json=body)).status_code == 201
    schedule = {
        "cron": "0 7 * * 1",
        "timeZone": "Europe/Berlin",
        "type": "demo/hello",
        "schemaVersion": 1,
        "input": INPUT,
        "retry": POLICY,
    }
    assert (await play.http.operator.put("/v1/schedules/weekly", json=schedule)).status_code == 201
    assert rows.value("SELECT left(encode(hash, 'hex'), 16) FROM signals") == "597e760d2abb2b50"
    assert rows.value("SELECT left(encode(hash, 'hex'), 16) FROM schedules") == "b113785d8e4c5e04"
