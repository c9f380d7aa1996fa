"""What an execution environment meets between two events: connections that died meanwhile, work that is cut off."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from gateway import Answer, make_event, read_answer
from interlock_core import db
from template import read_template

Load = Callable[..., Any]

TASK = {"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}}
HANDLERS = [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}]


def post(environment: Any, key: str, path: str, body: Any) -> Answer:
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
    return read_answer(
        environment(make_event("POST", path, route=f"POST {path}", headers=headers, body=json.dumps(body).encode()))
    )


def keyed() -> dict[str, Any]:
    return {**TASK, "idempotencyKey": uuid.uuid4().hex}


def count_tasks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM tasks").fetchone()
        assert row is not None
        return int(row[0])


def expect_recovery(environment: Any, key: str) -> None:
    """One 201 at once, or one retryable 503 and then a 201 for the same request."""
    body = keyed()
    first = post(environment, key, "/v1/tasks", body)
    if first.status != 201:
        assert (first.status, json.loads(first.body)["retryable"]) == (503, True)
        assert int(first.headers["retry-after"]) >= 1
        assert post(environment, key, "/v1/tasks", body).status in (200, 201)


def test_b32_backends_that_were_terminated(load: Load, keys: dict[str, str], database_url: str) -> None:
    submit = load("submit")
    assert post(submit, keys["task-producer"], "/v1/tasks", keyed()).status == 201
    with psycopg.connect(database_url, autocommit=True) as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert connection.execute(others).fetchall() == [(True,)]
    expect_recovery(submit, keys["task-producer"])
    assert count_tasks(database_url) == 2


def test_b32_a_server_that_became_read_only(load: Load, keys: dict[str, str], database_url: str) -> None:
    # As after a failover: the pool still holds the demoted server, new connections reach the new one.
    submit = load("submit")
    assert post(submit, keys["task-producer"], "/v1/tasks", keyed()).status == 201
    ((held, _),) = submit.database._idle
    asyncio.get_event_loop_policy().get_event_loop().run_until_complete(
        held.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    )
    expect_recovery(submit, keys["task-producer"])
    assert count_tasks(database_url) == 2


@pytest.mark.slow
def test_b32_a_network_that_fell_silent(
    load: Load, keys: dict[str, str], database_url: str, make_proxy: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The connection was idle for long (the environment was frozen), so it is asked before it is trusted.
    monkeypatch.setattr(db, "CHECK_AFTER_SECONDS", 0.0)
    proxy = make_proxy(database_url)
    submit = load("submit", change_port(database_url, proxy.port))
    assert post(submit, keys["task-producer"], "/v1/tasks", keyed()).status == 201
    proxy.black_hole()
    body, started = keyed(), time.monotonic()
    silent = post(submit, keys["task-producer"], "/v1/tasks", body)
    assert (silent.status, json.loads(silent.body)["retryable"]) == (503, True)
    assert time.monotonic() - started < 28
    proxy.cut(refuse=False)
    proxy.restore()
    assert post(submit, keys["task-producer"], "/v1/tasks", body).status in (200, 201)
    assert count_tasks(database_url) == 2


def test_b58_an_answer_that_never_arrived_is_given_again(load: Load, keys: dict[str, str], database_url: str) -> None:
    submit, claim, report = load("submit"), load("claim"), load("report")
    body = keyed()
    first, again = (post(submit, keys["task-producer"], "/v1/tasks", body) for _ in range(2))
    assert (first.status, again.status) == (201, 200)
    assert json.loads(again.body)["id"] == json.loads(first.body)["id"]
    post(submit, keys["task-producer"], "/v1/tasks", keyed())

    asked = {"workerId": "w", "instanceId": "i", "claimId": "c", "pool": "default", "slots": 2, "handlers": HANDLERS}
    lost, repeated = (json.loads(post(claim, keys["task-worker"], "/v1/claims", asked).body)["attempts"] for _ in range(2))
    assert [each["attemptId"] for each in repeated] == [each["attemptId"] for each in lost]
    done, given_back = ({name: each[name] for name in ("taskId", "attemptId", "fence", "leaseToken")} for each in repeated)

    completion = {"completions": [{**done, "outcome": "succeeded", "result": 1}]}
    release = {"attempts": [{**given_back, "started": False}]}
    for path, report_body, name, status in (
        ("/v1/attempts/complete", completion, "completions", "succeeded"),
        ("/v1/attempts/release", release, "attempts", "queued"),
    ):
        answers = [json.loads(post(report, keys["task-worker"], path, report_body).body)[name][0] for _ in range(2)]
        assert [(answer["taskStatus"], answer["duplicate"]) for answer in answers] == [(status, False), (status, True)]
    assert count_tasks(database_url) == 2


def test_b58_work_that_waits_is_cut_off_and_leaves_nothing(
    load: Load, keys: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "CALL_SECONDS", 1.0)
    submit = load("submit")
    assert post(submit, keys["task-producer"], "/v1/tasks", keyed()).status == 201
    body = keyed()
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        refused = post(submit, keys["task-producer"], "/v1/tasks", body)
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "UNAVAILABLE")
    # Had the statement only been abandoned, it would go on now that the lock is gone.
    assert count_tasks(database_url) == 1
    assert post(submit, keys["task-producer"], "/v1/tasks", body).status == 201


def test_b58_our_limits_come_before_the_platforms() -> None:
    timeout = read_template()["Globals"]["Function"]["Timeout"]
    assert db.CALL_SECONDS + db.CUT_SECONDS < timeout < 29


def change_port(url: str, port: int) -> str:
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    return psycopg.conninfo.make_conninfo("", **{**parameters, "host": "127.0.0.1", "port": port})
