"""The operator's calls against the real service, and what their keys protect from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock import ApiError, Client, Operator, TaskContext, TaskProducer, UnknownOutcome
from sdk.conftest import KEY, Answer, ScriptedServer, Seen
from sdk.live import Live
from support.waiting import wait_until


@pytest.fixture
def operator(live: Live) -> Operator:
    return Operator(client=live.client("operator"))


def test_a_settled_task_is_rerun_with_its_own_or_another_input(live: Live) -> None:
    live.start(lambda inp, ctx: {"input": inp, "scope": ctx.effect_key("mail")})
    first = live.producer.submit(live.type, 1, {"n": 1}, tags={"order": "17"})
    first.result(timeout=20)
    again = live.producer.rerun(first.id, keep_effect_keys=True, idempotency_key=f"again-{first.id}")
    assert again.result(timeout=20) == {"input": {"n": 1}, "scope": f"{first.id}/mail"}
    assert (again.task.rerun_of, dict(again.task.tags)) == (first.id, {"order": "17"})
    repeated = live.producer.rerun(first.id, keep_effect_keys=True, idempotency_key=f"again-{first.id}")
    assert repeated.id == again.id
    other = live.producer.rerun(first.id, input=None)
    assert other.result(timeout=20) == {"input": None, "scope": f"{other.id}/mail"}
    assert {task.id for task in live.producer.list(rerun_of=first.id)} == {again.id, other.id}


def test_only_a_settled_task_is_rerun(live: Live) -> None:
    task_id = live.submit(delay=3600)
    with pytest.raises(ApiError, match="TASK_NOT_FINISHED"):
        live.producer.rerun(task_id)


def test_an_unknown_outcome_is_resolved(live: Live, operator: Operator) -> None:
    sent: set[str] = set()

    def send(inp: Any, ctx: TaskContext) -> str:
        if ctx.task_id not in sent:
            sent.add(ctx.task_id)
            raise UnknownOutcome("sent, no answer")
        return "sent again"

    live.start(send, effect_safety="non-idempotent")
    ids = [live.submit() for _ in range(3)]
    assert {live.wait(task_id).status for task_id in ids} == {"outcome-unknown"}
    task = operator.resolve(ids[0], "succeeded", note="the mail is in the outbox", result={"id": 7})
    assert (task.status, task.result) == ("succeeded", {"id": 7})
    failure = operator.resolve(ids[1], "failed", note="it never left", attempt_id=operator.tasks.get(ids[1]).attempt.id).failure  # type: ignore[union-attr]
    assert failure is not None
    assert failure.code == "RESOLVED_FAILED"
    assert operator.resolve(ids[2], "requeue", note="look again").status == "queued"
    assert operator.tasks.result(ids[2], timeout=20) == "sent again"
    with pytest.raises(ApiError, match="TASK_NOT_UNKNOWN"):
        operator.resolve(ids[2], "failed", note="too late")
    assert operator.tasks.get(ids[2]).status == "succeeded"


def test_many_tasks_are_cancelled_and_rerun_at_once(live: Live, operator: Operator) -> None:
    ids = [live.submit(number, delay=3600) for number in range(5)]
    counted = operator.bulk("cancel", {"type": live.type, "status": ["queued"]}, dry_run=True)
    assert (counted.matched, live.producer.get(ids[0]).status) == (5, "queued")
    done = operator.bulk("cancel", {"type": live.type, "status": "queued"}, idempotency_key=f"stop-{live.type}")
    assert (done.matched, done.changed, done.skipped, done.more, done.duplicate) == (5, 5, 0, False, False)
    assert operator.bulk("cancel", {"type": live.type, "status": "queued"}, idempotency_key=f"stop-{live.type}").duplicate
    since = datetime.now(UTC) - timedelta(hours=1)
    assert operator.bulk("rerun", {"type": live.type, "created_after": since}).changed == 5
    assert len(list(live.producer.list(type=live.type))) == 10
    with pytest.raises(ValueError, match="'typ' is no filter"):
        operator.bulk("cancel", {"typ": live.type})  # type: ignore[typeddict-unknown-key]


def test_a_paused_type_waits(live: Live, operator: Operator) -> None:
    live.start(lambda inp, ctx: inp)
    assert operator.pause_type(live.type, 1)
    assert not operator.pause_type(live.type, 1)
    task_id = live.submit("x")
    found = operator.task_type(live.type, 1)
    assert (found.paused, found.queued, found.registered) == (True, 1, True)
    assert live.type in {item.type for item in operator.task_types()}
    waiting = live.producer.get(task_id).waiting
    assert waiting is not None
    assert waiting["reason"] == "paused"
    assert operator.resume_type(live.type, 1)
    assert live.wait(task_id).result == "x"
    with pytest.raises(ValueError, match="group/name"):
        operator.pause_type("no-type", 1)


def test_a_paused_project_waits(live: Live, operator: Operator) -> None:
    live.start(lambda inp, ctx: inp)
    try:
        assert operator.pause_project()
        task_id = live.submit("x")
        waiting = live.producer.get(task_id).waiting
        assert waiting is not None
        assert waiting["reason"] == "paused"
    finally:
        assert operator.resume_project()
    assert live.wait(task_id).result == "x"


def test_a_worker_is_seen_drained_and_removed(live: Live, operator: Operator) -> None:
    worker = live.start(lambda inp, ctx: inp, max_concurrent=3)
    wait_until(lambda: worker.worker_id in {item.worker_id for item in operator.workers()})
    seen = operator.worker(worker.worker_id)
    assert (seen.state, seen.registered, seen.slots, len(seen.instances)) == ("ready", True, 3, 1)
    assert seen.instances[0].instance_id == worker.instance_id
    assert seen.last_seen is not None
    assert operator.drain_worker(worker.worker_id) == [worker.instance_id]
    assert worker.join(timeout=20)
    assert operator.remove_worker(worker.worker_id)
    assert not operator.remove_worker(worker.worker_id)


def test_limits_and_the_rate_are_set_and_read(live: Live, operator: Operator) -> None:
    key = f"limit-{live.type}"
    operator.set_limit(key, 0)
    assert [(item.limit, item.held) for item in operator.limits().keys if item.key == key] == [(0, 0)]
    task_id = live.submit("x", concurrency=(key, 5))
    live.start(lambda inp, ctx: inp)
    waiting = live.producer.get(task_id).waiting
    assert waiting is not None
    assert waiting["reason"] == "concurrency-limit"
    operator.drop_limit(key)
    assert live.wait(task_id).result == "x"
    assert key not in {item.key for item in operator.limits().keys}
    try:
        operator.set_rate(1000)
        rate = operator.limits().rate
        assert rate is not None
        assert (rate.per_second, rate.burst) == (1000, 1000)
    finally:
        operator.set_rate(None)
    assert operator.limits().rate is None


def test_keys_are_made_rotated_and_revoked(live: Live, operator: Operator) -> None:
    made = operator.keys.create("ci", "task-producer", types=["test/*"], idempotency_key=f"key-{live.type}")
    assert made.key is not None
    assert made.key not in repr(made)
    assert operator.keys.create("ci", "task-producer", types=["test/*"], idempotency_key=f"key-{live.type}").key is None
    listed = next(item for item in operator.keys.list() if item.id == made.id)
    assert (listed.name, listed.kind, listed.types, listed.revoked_at) == ("ci", "task-producer", ("test/*",), None)
    rotated = operator.keys.rotate(made.id, timedelta(minutes=5))
    assert rotated.key is not None
    for key in (made.key, rotated.key):
        with TaskProducer(live.url, key) as producer:
            assert producer.submit(live.type, 1, delay=3600).id
    assert operator.keys.revoke(made.id)
    assert not operator.keys.revoke(made.id)
    actions = [(entry.action, entry.target) for entry in operator.audit() if entry.target in (made.id, rotated.id)]
    assert any(target == made.id and "revoke" in action for action, target in actions)
    with pytest.raises(TypeError, match="list"):
        operator.keys.create("ci", "task-worker", pools="default")


def test_a_new_key_whose_answer_was_lost_is_replaced(scripted: ScriptedServer) -> None:
    bodies: list[Any] = []

    def make(seen: Seen) -> Answer:
        bodies.append(seen.json)
        if len(bodies) == 1:
            return Answer(drop=True)
        view = {"id": f"k{len(bodies)}", "name": "ci", "kind": "task-worker"}
        return Answer(200, view) if len(bodies) == 2 else Answer(201, {**view, "key": "il_w_new"})

    scripted.answer("POST", "/v1/keys", make)
    scripted.answer("POST", "/v1/keys/k2/revoke", Answer(200, {"id": "k2", "duplicate": False}))
    made = Operator(client=Client(scripted.url, KEY, kind="operator")).keys.create("ci", "task-worker")
    assert (made.id, made.key) == ("k3", "il_w_new")
    assert [seen.path for seen in scripted.seen][-2:] == ["/v1/keys/k2/revoke", "/v1/keys"]
    assert len({body["idempotencyKey"] for body in bodies}) == 2
    assert bodies[0] == bodies[1]


def test_the_doctor_answers_an_operator(operator: Operator) -> None:
    assert operator.doctor()["schemaVersion"]
    assert "il_" not in repr(operator)
