"""Tickets: one opening of one stream, for readers that cannot send a key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from interlock_core.db import Database
from stream.conftest import Serve, Service


async def test_a_ticket_opens_its_stream_once(service: Service) -> None:
    task = await service.submit()
    path = f"/v1/tasks/{task['id']}/stream"
    made = await _make(service, path)
    assert timedelta(seconds=50) < datetime.fromisoformat(made["expiresAt"]) - datetime.now(UTC) < timedelta(seconds=70)
    watch = await service.read_along(path, _nobody(service), ticket=made["ticket"], lastEventId="9")
    await watch.until("submitted")
    assert watch.kinds() == ["reset", "submitted"]
    assert watch.response.headers["access-control-allow-origin"] == "*"
    await _refused(service, path, made["ticket"])


async def test_of_many_who_use_a_ticket_on_several_hosts_one_gets_in(serve: Serve) -> None:
    one, two = await serve(), await serve()
    task = await one.submit()
    (attempt,) = await one.claim("i")
    await one.complete(attempt)  # so that each stream ends at once
    path = f"/v1/tasks/{task['id']}/stream"
    ticket = (await _make(one, path))["ticket"]
    clients = [_nobody(service) for service in (one, two) for _ in range(5)]
    answers = await asyncio.gather(*(client.get(path, params={"ticket": ticket}) for client in clients))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 9


async def test_a_ticket_is_for_its_path_and_time_and_any_use_takes_it(service: Service, database: Database) -> None:
    task, other = await service.submit(), await service.submit()
    path = f"/v1/tasks/{task['id']}/stream"
    ticket = (await _make(service, path))["ticket"]
    await _refused(service, f"/v1/tasks/{other['id']}/stream", ticket)
    await _refused(service, path, ticket)
    late = (await _make(service, path))["ticket"]
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("UPDATE tickets SET expires_at = now()")
        await _refused(service, path, late)
        for _ in range(3):
            await _make(service, path)
        connection.execute("UPDATE tickets SET expires_at = now() - interval '1 second'")
        await _make(service, path)
        assert connection.execute("SELECT count(*) FROM tickets").fetchone() == (1,), "those that nobody used do not pile up"
    for nonsense in ("", "x" * 43, "é", "a b", "x" * 5000):
        await _refused(service, path, nonsense)


async def test_a_ticket_ends_with_its_key(service: Service) -> None:
    task = await service.submit()
    path = f"/v1/tasks/{task['id']}/stream"
    key = (await service.operator.post("/v1/keys", json={"name": "console", "kind": "operator"})).json()
    operator = service.client_of(key["key"])
    first, second = [(await _make(service, path, operator))["ticket"] for _ in range(2)]
    watch = await service.read_along(path, _nobody(service), ticket=first)
    await watch.until("submitted")
    await service.operator.post(f"/v1/keys/{key['id']}/revoke")
    await _refused(service, path, second)
    await watch.until("revoked", timeout=5)
    await watch.until_ended(1)


async def test_another_projects_task_stays_unknown(service: Service) -> None:
    path = "/v1/tasks/00000000-0000-7000-8000-000000000000/stream"
    ticket = (await _make(service, path))["ticket"]
    answer = await _nobody(service).get(path, params={"ticket": ticket})
    assert answer.json()["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "path", ["", "/v1/stream", "/v1/tasks", "/v1/tasks/x/stream", "/v1/events/stream?x=1", "//v1/events/stream"]
)
async def test_tickets_are_for_streams_of_watchers_only(service: Service, path: str) -> None:
    answer = await service.operator.post("/v1/stream-tickets", json={"path": path})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/path")


async def test_only_an_operator_makes_tickets_and_no_call_takes_one(service: Service) -> None:
    path = "/v1/events/stream"
    for client in (service.producer, service.worker, service.client("metrics")):
        assert (await client.post("/v1/stream-tickets", json={"path": path})).json()["code"] == "SCOPE_DENIED"
    task = await service.submit()
    ticket = (await _make(service, f"/v1/tasks/{task['id']}/stream"))["ticket"]
    answer = await _nobody(service).get(f"/v1/tasks/{task['id']}", params={"ticket": ticket})
    assert answer.json()["code"] == "UNAUTHENTICATED"


def _nobody(service: Service) -> httpx.AsyncClient:
    client = service.client("operator")
    del client.headers["authorization"]
    return client


async def _make(service: Service, path: str, client: httpx.AsyncClient | None = None) -> dict[str, str]:
    answer = await (client or service.operator).post("/v1/stream-tickets", json={"path": path})
    assert answer.status_code == 201, answer.text
    made: dict[str, str] = answer.json()
    return made


async def _refused(service: Service, path: str, ticket: str) -> None:
    answer = await _nobody(service).get(path, params={"ticket": ticket})
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
    assert ticket == "" or ticket not in answer.text
