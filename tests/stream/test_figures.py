"""What the stream says of itself, beside the project's figures on a host that serves both."""

from __future__ import annotations

import re
import time

import psycopg
import pytest

from stream.conftest import Service
from support.waiting import wait_until_async


def _read(text: str) -> dict[str, float]:
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.]+', line), line
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


async def test_a_host_of_both_answers_for_both(service: Service) -> None:
    task = await service.submit()
    await service.stream()
    watches = [await service.watch(task["id"]) for _ in range(2)]
    for watch in watches:
        await watch.until("submitted")
    for kind in ("operator", "metrics"):
        answer = await service.client(kind).get("/v1/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        found = _read(answer.text)
        assert found["interlock_queue_depth"] == 1
        assert found['interlock_stream_open{kind="worker"}'] == 1
        assert found['interlock_stream_open{kind="task"}'] == 2
        assert found["interlock_stream_watched_tasks"] == 1
        assert found["interlock_stream_memory_bytes"] > 10_000_000
        assert found["interlock_stream_descriptors"] > 5
        assert found["interlock_stream_listening"] == 1
        assert found["interlock_stream_hints_total"] >= 1
        assert "# TYPE interlock_stream_hints_total counter" in answer.text
    refused = await service.worker.get("/v1/metrics")
    assert refused.json()["code"] == "SCOPE_DENIED"


async def test_b45_a_replaced_session_is_counted(service: Service) -> None:
    with psycopg.connect(service.broadcaster.listener._address.find_now(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'interlock stream'")
    await wait_until_async(lambda: service.broadcaster.listener.sessions == 2, 30)
    found = _read((await service.operator.get("/v1/metrics")).text)
    assert found["interlock_stream_sessions_replaced_total"] == 1
    assert found["interlock_stream_listen_lag_seconds"] > 0


async def test_doctor_tells_how_late_hints_are_where_the_host_hears_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lag() -> float:
        found: float = (await service.producer.get("/v1/doctor")).json()["streamLagSeconds"]
        return found

    listener = service.broadcaster.listener
    await wait_until_async(lambda: listener.listening)
    assert 0 <= await lag() < 5
    assert "streamLagSeconds" not in (await service.worker.get("/v1/doctor")).json()
    monkeypatch.setattr(listener, "listening", False)
    monkeypatch.setattr(listener, "_proved_at", time.monotonic() - 100)
    assert 100 <= await lag() < 105
    monkeypatch.setattr(listener, "listening", True)
    monkeypatch.setattr(listener, "_token", "a proof that is missing")
    monkeypatch.setattr(listener, "_asked_at", time.monotonic() - 30)
    assert 30 <= await lag() < 35
    monkeypatch.setattr(listener, "lag_seconds", None)
    assert await lag() is None
