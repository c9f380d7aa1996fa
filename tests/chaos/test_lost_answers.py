"""The answer of each mutation is lost once: the repeat gives the first answer, and the database shows one effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from support.claimer import Claimer, ids
from support.dev_service import DevService
from support.proxy import MakeProxy, Proxy
from support.waiting import wait_until

#: What a call may leave behind, counted; leases, last-seen times and tokens move with every call and are left out.
EFFECTS = """
SELECT (SELECT count(*) FROM tasks), (SELECT sum(fence) FROM tasks), (SELECT sum(attempts) FROM tasks),
       (SELECT string_agg(status, ',' ORDER BY id) FROM tasks), (SELECT count(*) FROM journal), (SELECT count(*) FROM keys),
       (SELECT count(*) FROM keys WHERE revoked_at IS NOT NULL), (SELECT count(*) FROM projects),
       (SELECT count(*) FROM idempotency), (SELECT count(*) FROM worker_ids), (SELECT count(*) FROM instances),
       (SELECT count(*) FROM instances WHERE ended_at IS NOT NULL), (SELECT count(*) FROM handlers)
"""


class Losing:
    """Calls whose first answer is lost."""

    def __init__(self, service: DevService, proxy: Proxy, name: str) -> None:
        self.service = service
        self.name = name  # tells this test's tasks, keys and workers from those of the others on the same service
        self.type = f"lost/{name}"
        self._proxy = proxy
        self._clients = {kind: service.client(kind) for kind in service.info["keys"]}
        self._database = psycopg.connect(service.info["databaseUrl"], autocommit=True)

    def close(self) -> None:
        self._database.close()
        for client in self._clients.values():
            client.close()

    def ask(self, kind: str, method: str, path: str, body: Any = None) -> Any:
        """A call that is answered."""
        answer = self._clients[kind].request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def lose(self, kind: str, method: str, path: str, body: Any = None) -> Any:
        """A call whose answer is lost, then the same again: its answer, if the repeat had no effect of its own."""
        before = self._effects()
        rule = self._proxy.drop_next_answer(method, path)
        headers = {"Authorization": f"Bearer {self.service.key(kind)}"}
        with httpx.Client(base_url=self._proxy.url, headers=headers) as client, pytest.raises(httpx.TransportError):
            client.request(method, path, json=body)
        rule.wait()
        once = self._effects()
        assert once != before, "the first call had no effect"
        answer = self.ask(kind, method, path, body)
        assert self._effects() == once
        return answer

    def _effects(self) -> tuple[Any, ...]:
        row = self._database.execute(EFFECTS).fetchone()
        assert row is not None
        return row

    def submit(self) -> str:
        task_id: str = self.ask("task-producer", "POST", "/v1/tasks", {"type": self.type, "schemaVersion": 1, "input": 1})["id"]
        return task_id

    def claim(self, effect_safety: str = "pure") -> dict[str, Any]:
        self.submit()
        (attempt,) = Claimer(self._clients["task-worker"], [self.type], effect_safety=effect_safety).claim(1)
        return attempt

    def new_claim(self, slots: int) -> dict[str, Any]:
        """The body of a claim by an instance of its own."""
        with httpx.Client() as client:
            return Claimer(client, [self.type]).claim_body(slots)

    def registration(self) -> dict[str, Any]:
        handler = {"type": self.type, "schemaVersion": 1, "effectSafety": "pure"}
        return {"instanceId": "i", "pool": "default", "slots": 2, "sdk": {"name": "test", "version": "1"}, "handlers": [handler]}


@pytest.fixture(scope="module")
def service(clone_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevService]:
    """One service for all: what they do does not meet."""
    node = DevService(tmp_path_factory.mktemp("lost") / "node", "--database-url", clone_database())
    node.start()
    yield node
    node.terminate()


@pytest.fixture
def losing(service: DevService, make_proxy: MakeProxy, mutation: Callable[[Losing], None]) -> Iterator[Losing]:
    calls = Losing(service, make_proxy(service.url), mutation.__name__)
    yield calls
    calls.close()


def submit(calls: Losing) -> None:
    body = {"type": calls.type, "schemaVersion": 1, "input": {"a": [1, 2.50]}, "idempotencyKey": calls.name}
    assert calls.lose("task-producer", "POST", "/v1/tasks", body)["deduplicated"] is True


def submit_batch(calls: Losing) -> None:
    body = {
        "tasks": [{"type": calls.type, "schemaVersion": 1, "input": n, "idempotencyKey": f"{calls.name}-{n}"} for n in range(5)]
    }
    assert all(item["deduplicated"] for item in calls.lose("task-producer", "POST", "/v1/tasks/batch", body)["items"])


def claim(calls: Losing) -> None:
    tasks = {calls.submit() for _ in range(3)}
    answer = calls.lose("task-worker", "POST", "/v1/claims", calls.new_claim(10))
    assert {attempt["taskId"] for attempt in answer["attempts"]} == tasks
    done = [{**ids(attempt), "outcome": "succeeded", "result": None} for attempt in answer["attempts"]]
    completed = calls.ask("task-worker", "POST", "/v1/attempts/complete", {"completions": done})
    assert all(item["taskStatus"] == "succeeded" for item in completed["completions"])


def complete(calls: Losing) -> None:
    attempt = calls.claim()
    body = {"completions": [{**ids(attempt), "outcome": "succeeded", "result": {"n": 1.0}}]}
    (item,) = calls.lose("task-worker", "POST", "/v1/attempts/complete", body)["completions"]
    assert (item["taskStatus"], item["duplicate"]) == ("succeeded", True)


def complete_and_claim(calls: Losing) -> None:
    attempt, waiting = calls.claim(), calls.submit()
    body = {"completions": [{**ids(attempt), "outcome": "succeeded", "result": 1}], "claim": calls.new_claim(5)}
    answer = calls.lose("task-worker", "POST", "/v1/attempts/complete", body)
    assert answer["completions"][0]["duplicate"] is True
    assert [a["taskId"] for a in answer["claim"]["attempts"]] == [waiting]


def fail_for_retry(calls: Losing) -> None:
    attempt = calls.claim()
    body = {"completions": [{**ids(attempt), "outcome": "retryable", "error": {"code": "AGAIN", "message": "m"}}]}
    (item,) = calls.lose("task-worker", "POST", "/v1/attempts/complete", body)["completions"]
    assert (item["taskStatus"], item["duplicate"]) == ("queued", True)


def complete_one(calls: Losing) -> None:
    attempt = calls.claim()
    path = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/complete"
    answer = calls.lose(
        "task-worker", "POST", path, {**ids(attempt), "outcome": "failed", "error": {"code": "BAD", "message": "m"}}
    )
    assert (answer["taskStatus"], answer["duplicate"]) == ("failed", True)


def heartbeat_with_logs(calls: Losing) -> None:
    attempt = calls.claim()
    logs = [{"seq": 1, "level": "info", "message": "one"}, {"seq": 2, "level": "info", "message": "two"}]
    body = {"workerId": "claimer", "instanceId": "i", "attempts": [{**ids(attempt), "logs": logs}]}
    calls.lose("task-worker", "POST", "/v1/attempts/heartbeat", body)

    def taken() -> bool:
        """Logs of one attempt are taken every 0.1 s: a repeat that comes sooner is told so, and repeated."""
        (item,) = calls.ask("task-worker", "POST", "/v1/attempts/heartbeat", body)["attempts"]
        assert "error" not in item or item["error"]["retryable"], item
        return "error" not in item and item["stop"] is None

    wait_until(taken)
    journal = calls.ask("task-producer", "GET", f"/v1/tasks/{attempt['taskId']}/journal")["items"]
    assert [len(event["data"]["lines"]) for event in journal if event["kind"] == "log"] == [2]


def release(calls: Losing) -> None:
    attempt = calls.claim()
    (item,) = calls.lose("task-worker", "POST", "/v1/attempts/release", {"attempts": [ids(attempt)]})["attempts"]
    assert (item["taskStatus"], item["duplicate"]) == ("queued", True)


def cancel(calls: Losing) -> None:
    answer = calls.lose("task-producer", "POST", f"/v1/tasks/{calls.submit()}/cancel", {"reason": "r"})
    assert answer["status"] == "cancelled"


def cancel_while_running(calls: Losing) -> None:
    attempt = calls.claim()
    answer = calls.lose("task-producer", "POST", f"/v1/tasks/{attempt['taskId']}/cancel", {})
    assert (answer["status"], answer["cancelRequested"], answer["duplicate"]) == ("running", True, True)


def resolve(calls: Losing) -> None:
    attempt = calls.claim("non-idempotent")
    unknown = {**ids(attempt), "outcome": "unknown", "error": {"code": "LOST", "message": "m"}}
    calls.ask("task-worker", "POST", "/v1/attempts/complete", {"completions": [unknown]})
    body = {"as": "succeeded", "attemptId": attempt["attemptId"], "result": 7, "note": "seen"}
    answer = calls.lose("operator", "POST", f"/v1/tasks/{attempt['taskId']}/resolve", body)
    assert (answer["status"], answer["duplicate"]) == ("succeeded", True)


def register(calls: Losing) -> None:
    calls.lose("task-worker", "PUT", f"/v1/workers/{calls.name}", calls.registration())


def remove_instance(calls: Losing) -> None:
    calls.ask("task-worker", "PUT", f"/v1/workers/{calls.name}", calls.registration())
    calls.lose("task-worker", "DELETE", f"/v1/workers/{calls.name}/instances/i")


def make_key(calls: Losing) -> None:
    answer = calls.lose("operator", "POST", "/v1/keys", {"name": "n", "kind": "task-worker", "idempotencyKey": calls.name})
    assert answer["duplicate"] is True
    assert "key" not in answer


def revoke_key(calls: Losing) -> None:
    made = calls.ask("operator", "POST", "/v1/keys", {"name": "n", "kind": "task-worker"})
    assert calls.lose("operator", "POST", f"/v1/keys/{made['id']}/revoke")["duplicate"] is True


def make_project(calls: Losing) -> None:
    assert calls.lose("admin", "POST", "/v1/projects", {"name": "another", "idempotencyKey": "k"})["duplicate"] is True


MUTATIONS: list[Callable[[Losing], None]] = [
    *(submit, submit_batch, claim, complete, complete_and_claim, complete_one, fail_for_retry, heartbeat_with_logs, release),
    *(cancel, cancel_while_running, resolve, register, remove_instance, make_key, revoke_key, make_project),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda run: run.__name__)
def test_a_lost_answer_has_one_effect(losing: Losing, mutation: Callable[[Losing], None]) -> None:
    mutation(losing)
