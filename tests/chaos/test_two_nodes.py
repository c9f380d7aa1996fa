"""Two nodes on one database share the work: nothing is handed out twice, nothing is left."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from support.claimer import Claimer
from support.dev_service import DevService, StartService
from support.waiting import wait_until

TASKS = 1000
CLAIMERS = 8
SLOTS = 7


def work(node: DevService) -> Claimer:
    """Claim and complete until nothing is left: every second completion claims in the same call."""
    with node.client("task-worker") as client:
        claimer = Claimer(client)
        attempts = claimer.claim(SLOTS)
        for turn in range(TASKS):
            if not attempts:
                break
            if turn % 2:
                answer = claimer.complete(attempts, claim=SLOTS)
                attempts = answer["claim"]["attempts"]
            else:
                answer = claimer.complete(attempts)
                attempts = claimer.claim(SLOTS)
            assert all(item["taskStatus"] == "succeeded" and not item["duplicate"] for item in answer["completions"])
        return claimer


@pytest.mark.slow
def test_1000_tasks_and_8_claimers_on_two_nodes(service: DevService, start_service: StartService) -> None:
    second = start_service("--database-url", service.info["databaseUrl"])
    with service.client() as client:
        tasks = [{"type": "demo/hello", "schemaVersion": 1, "input": n, "priority": n % 3} for n in range(TASKS)]
        answer = client.post("/v1/tasks/batch", json={"tasks": tasks})
        assert answer.status_code == 201, answer.text
        submitted = {item["id"] for item in answer.json()["items"]}
    with ThreadPoolExecutor(CLAIMERS) as pool:
        claimers = list(pool.map(work, [service, second] * (CLAIMERS // 2)))

    claims = [attempt for claimer in claimers for attempt in claimer.claimed]
    assert Counter(a["taskId"] for a in claims) == Counter(submitted)
    assert len({a["attemptId"] for a in claims}) == TASKS
    assert {a["fence"] for a in claims} == {1}
    assert sum(1 for claimer in claimers if claimer.claimed) > 1
    with psycopg.connect(service.info["databaseUrl"]) as connection:
        rows = connection.execute("SELECT status, count(*) FROM tasks GROUP BY status").fetchall()
        assert rows == [("succeeded", TASKS)]
        ends = connection.execute("SELECT count(*) FROM journal WHERE kind = 'succeeded'").fetchone()
        assert ends == (TASKS,)
        deadlocks = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert deadlocks == (0,)
    for node in (service, second):
        assert "Traceback" not in node.output.read_text()


@pytest.mark.slow
def test_no_claim_goes_over_a_concurrency_limit_on_two_nodes(service: DevService, start_service: StartService) -> None:
    second = start_service("--database-url", service.info["databaseUrl"])
    with service.client() as client:
        tasks = [
            {"type": "demo/hello", "schemaVersion": 1, "input": n, "concurrency": {"key": f"k{n % 5}", "limit": 2}}
            for n in range(200)
        ]
        assert client.post("/v1/tasks/batch", json={"tasks": tasks}).status_code == 201

    def work_on(node: DevService) -> int:
        done = 0
        with node.client("task-worker") as client, psycopg.connect(service.info["databaseUrl"], autocommit=True) as look:
            claimer = Claimer(client)
            while True:
                attempts = claimer.claim(SLOTS)
                over = look.execute(
                    "SELECT concurrency_key, count(*) FROM tasks WHERE status = 'running' GROUP BY 1 HAVING count(*) > 2"
                ).fetchall()
                assert over == []
                if attempts:
                    claimer.complete(attempts)
                    done += len(attempts)
                left = look.execute("SELECT count(*) FROM tasks WHERE status = 'queued'").fetchone()
                if left == (0,):
                    return done

    with ThreadPoolExecutor(CLAIMERS) as pool:
        assert sum(pool.map(work_on, [service, second] * (CLAIMERS // 2))) == 200


@pytest.mark.slow
@pytest.mark.warm
def test_a_node_outlives_a_restart_of_the_database_that_another_one_owns(start_service: StartService) -> None:
    first = start_service()
    second = start_service("--database-url", first.info["databaseUrl"])
    with second.client() as client:

        def submit() -> httpx.Response:
            return client.post("/v1/tasks", json={"type": "demo/hello", "schemaVersion": 1, "input": 1})

        assert submit().status_code == 201
        first.kill()
        refused = wait_until(lambda: answer if (answer := submit()).status_code != 201 else None)
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "UNAVAILABLE", True)
        first.restart()
        wait_until(lambda: submit().status_code == 201, timeout=15)
    assert "Traceback" not in second.output.read_text()
