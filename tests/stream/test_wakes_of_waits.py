"""What ends a wait wakes a worker at that instant: time by the stream's own timer, a signal and the last child by a hint."""

from __future__ import annotations

import time
from typing import Any

from stream.conftest import Service


async def suspend(service: Service, attempt: dict[str, Any], **wait: Any) -> None:
    answer = await service.complete(attempt, "suspended", wait={"name": "w", **wait})
    assert answer["taskStatus"] == "waiting", answer


async def test_a_sleep_wakes_within_a_second_of_its_end(service: Service) -> None:
    await service.submit()
    stream = await service.stream()
    (attempt,) = await service.claim(stream.instance_id)
    seen = stream.count("wake")
    began = time.monotonic()
    await suspend(service, attempt, afterSeconds=2)
    await stream.until("wake", count=seen + 1)
    assert 1.9 < time.monotonic() - began < 3
    (again,) = await service.claim(stream.instance_id)
    assert again["steps"][0]["output"] == {"timedOut": True}


async def test_a_sleep_that_began_before_the_stream_wakes_it_as_well(service: Service) -> None:
    await service.submit()
    (attempt,) = await service.claim("first")
    await suspend(service, attempt, afterSeconds=1.5)
    stream = await service.stream()
    await stream.until("wake")
    assert len(await service.claim(stream.instance_id)) == 1


async def test_a_signal_wakes_at_once(service: Service) -> None:
    task = await service.submit()
    stream = await service.stream()
    (attempt,) = await service.claim(stream.instance_id)
    await suspend(service, attempt, signal="ok")
    seen = stream.count("wake")
    body = {"name": "ok", "payload": 1, "signalKey": "one"}
    answer = await service.producer.post(f"/v1/tasks/{task['id']}/signals", json=body)
    assert answer.status_code == 201, answer.text
    await stream.until("wake", count=seen + 1)
    assert len(await service.claim(stream.instance_id)) == 1


async def test_the_last_child_wakes_its_parents_worker(service: Service) -> None:
    await service.submit()
    stream = await service.stream()
    (attempt,) = await service.claim(stream.instance_id)
    ids = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
    child = {**ids, "name": "kid", "type": "demo/other", "schemaVersion": 1, "input": 1}
    path = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/children"
    assert (await service.worker.post(path, json=child)).status_code == 200
    await suspend(service, attempt, children=["kid"])
    seen = stream.count("wake")
    (kid,) = await service.claim("other", task_type="demo/other")
    await service.complete(kid, "succeeded", result=1)
    await stream.until("wake", count=seen + 1)
    (again,) = await service.claim(stream.instance_id)
    assert again["taskId"] == attempt["taskId"]
