"""The session that listens: what it hears, how it is proved, and how it is replaced when it died without a word."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from interlock_core import hints, listen
from interlock_core.db import Database
from interlock_core.listen import Listener
from stream.conftest import TYPE, Serve, Service
from support.proxy import MakeProxy
from support.waiting import wait_until_async


class Ears:
    """A listener whose callbacks are noted."""

    def __init__(self, url: str) -> None:
        self.heard: list[str] = []
        self.renewals = 0
        self.listener = Listener(url, self.heard.append, self._renewed, proof_seconds=0.5)

    def _renewed(self) -> None:
        self.renewals += 1

    async def renewed(self, count: int) -> None:
        await wait_until_async(lambda: self.renewals >= count, 30)


@pytest.fixture
async def listen_on() -> AsyncIterator[Callable[[str], Ears]]:
    tasks = []

    def start(url: str) -> Ears:
        ears = Ears(url)
        tasks.append(asyncio.create_task(ears.listener.run()))
        return ears

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_hears_hints_and_not_its_own_proofs(database: Database, listen_on: Callable[[str], Ears]) -> None:
    ears, other = listen_on(database.address.find_now()), listen_on(database.address.find_now())
    await ears.renewed(1)
    await other.renewed(1)
    sent = hints.payload("test", ready=[("demo/hello@1", "default", 1, 0.0)])
    await database.one(hints.send(sent))
    await wait_until_async(lambda: ears.heard and other.heard)
    assert ears.heard == other.heard == [sent]
    assert ears.listener.lag_seconds is not None


async def test_b45_a_listener_behind_a_black_hole_is_replaced(
    database: Database, make_proxy: MakeProxy, listen_on: Callable[[str], Ears], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No FIN, no RST: only the missing echo of its own notice tells."""
    monkeypatch.setattr(listen, "CONNECT_SECONDS", 1)
    proxy = make_proxy(database.address.find_now())
    ears = listen_on(_through(database.address.find_now(), proxy.port))
    await ears.renewed(1)
    proxy.black_hole()
    await wait_until_async(lambda: not ears.listener.listening, 10)
    proxy.restore()
    await ears.renewed(2)
    await database.one(hints.send(hints.payload("test", done=[])))
    await wait_until_async(lambda: ears.heard)


async def test_b45_a_fault_that_nobody_foresaw_ends_no_listener(
    database: Database, listen_on: Callable[[str], Ears], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RuntimeError("of a kind that nobody foresaw"), ValueError("so too")]
    session = Listener._session

    async def fails_first(self: Listener) -> None:
        if faults:
            raise faults.pop()
        await session(self)

    monkeypatch.setattr(Listener, "_session", fails_first)
    ears = listen_on(database.address.find_now())
    await ears.renewed(1)
    assert not faults


async def test_a_flood_of_hints_that_nobody_understands_fills_no_log(
    database: Database, listen_on: Callable[[str], Ears], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misunderstand(self: Listener, payload: str) -> None:
        raise ValueError(payload)

    ears = listen_on(database.address.find_now())
    await ears.renewed(1)
    monkeypatch.setattr(ears.listener, "_heard", misunderstand.__get__(ears.listener))
    await database.one(hints.send(*(f"garbage {number}" for number in range(500))))
    await wait_until_async(lambda: ears.listener.misunderstood == 500)
    assert [record.exc_info is not None for record in caplog.records if "understood" in record.message] == [True]
    assert ears.listener.listening


async def test_b45_a_session_without_its_subscription_is_replaced(
    database: Database, listen_on: Callable[[str], Ears], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session answers every query, and hears nothing."""
    ears = listen_on(database.address.find_now())
    await ears.renewed(1)
    ask = ears.listener._ask

    def unlisten_once(pgconn: psycopg.pq.abc.PGconn, before: str = "") -> None:
        monkeypatch.undo()
        ask(pgconn, "UNLISTEN *;")

    monkeypatch.setattr(ears.listener, "_ask", unlisten_once)
    await ears.renewed(2)


async def test_b45_where_hints_come_a_late_echo_ends_no_session(
    database: Database, listen_on: Callable[[str], Ears], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing the session would lose what waits to be heard, and everyone would read again: at the worst moment."""
    ears = listen_on(database.address.find_now())
    await ears.renewed(1)
    asked = 0

    def forget(*_: object) -> None:
        nonlocal asked
        asked += 1
        ears.listener._token = "never to be heard"
        ears.listener._asked_at = time.monotonic()

    monkeypatch.setattr(ears.listener, "_ask", forget)
    await wait_until_async(lambda: asked == 1)
    until = time.monotonic() + 4 * ears.listener._proof_seconds
    while time.monotonic() < until:
        await database.one(hints.send(hints.payload("test", ready=[("demo/hello@1", "default", 1, 0.0)])))
        await asyncio.sleep(0.05)
    assert (ears.listener.sessions, ears.listener.listening, asked) == (1, True, 1)
    assert (ears.listener.lag() or 0) > 3 * ears.listener._proof_seconds  # and it is told how late hints may be
    monkeypatch.undo()
    await ears.renewed(2)  # since nothing comes any more


async def test_b45_a_database_that_is_away_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            raise asyncio.CancelledError

    monkeypatch.setattr(listen.asyncio, "sleep", note)
    with contextlib.suppress(asyncio.CancelledError):
        await Listener(f"postgresql://x@127.0.0.1:{port}/x", lambda _: None, lambda: None).run()
    assert max(pauses[:2]) < 1
    assert min(pauses[6:]) >= listen.LONGEST_PAUSE / 2
    assert max(pauses) <= listen.LONGEST_PAUSE
    assert len(set(pauses)) == 12, "without jitter all listeners come back at once"


async def test_b45_a_replaced_listener_wakes_everyone_and_loses_no_work(service: Service) -> None:
    service.broadcaster.listener._proof_seconds = 0.5
    streams = [await service.stream() for _ in range(3)]
    await service.submit(type="demo/else")
    with psycopg.connect(service.broadcaster.listener._address.find_now(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'interlock stream'")
    await wait_until_async(lambda: service.broadcaster.listener.sessions == 2, 30)
    for stream in streams:
        assert (await stream.until("wake")).data == {"types": [f"{TYPE}@1"]}
    assert service.broadcaster.listener.listening
    await service.submit()
    await wait_until_async(lambda: sum(stream.count("wake") for stream in streams) == 4)


@pytest.mark.slow
async def test_b45_a_stream_host_behind_a_black_hole_comes_back_by_itself(
    serve: Serve, database: Database, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its looks and its hints are cut off at once, without a word; others go on, and their work is found when it is back."""
    monkeypatch.setattr(listen, "CONNECT_SECONDS", 1)
    proxy = make_proxy(database.address.find_now())
    near, far = await serve(), await serve(url=_through(database.address.find_now(), proxy.port))
    far.broadcaster.listener._proof_seconds = 0.5
    stream = await far.stream()
    proxy.black_hole()
    await wait_until_async(lambda: not far.broadcaster.listener.listening)
    await near.submit()
    proxy.restore()
    await stream.until("wake", timeout=30)
    await far.listening()
    assert not stream.ended


async def test_work_is_found_while_no_hint_is_heard(serve: Serve) -> None:
    """A hint that is lost is made good by the next look, long before a worker with a stream would poll."""
    service = await serve(min_lease_seconds=2)  # so the regular look comes every second
    stream = await service.stream()
    service.broadcaster.listener._heard = lambda _: None
    await service.submit()
    await stream.until("wake", timeout=3)


async def test_b46_hints_are_small_and_what_does_not_fit_says_read_again(service: Service) -> None:
    types = [f"g{n}/" + "n" * 60 for n in range(300)]
    stream = await service.stream(types=f"{types[123]}@1")
    ears = Ears(service.broadcaster.listener._address.find_now())
    task = asyncio.create_task(ears.listener.run())
    await ears.renewed(1)
    batch = [{"type": types[n % 300], "schemaVersion": 1, "input": {}, "pool": "default"} for n in range(1000)]
    answer = await service.producer.post("/v1/tasks/batch", json={"tasks": batch})
    assert answer.status_code == 201
    await stream.until("wake")
    await wait_until_async(lambda: ears.heard)
    assert ears.heard == ['{"p":"test","ready":"*"}']
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_b46_a_hint_is_bounded_in_bytes_not_in_characters() -> None:
    wide = [("é" * 30 + f"/{n}@1", "プール" * 80, 1, 0.0) for n in range(12)]
    assert len(hints.payload("test", ready=wide)) < hints.MAX_BYTES
    assert hints.payload("test", ready=wide) == '{"p":"test","ready":"*"}'


async def test_b46_progress_and_logs_send_no_hint(service: Service, listen_on: Callable[[str], Ears]) -> None:
    await service.submit()
    (attempt,) = await service.claim("i")
    ears = listen_on(service.broadcaster.listener._address.find_now())
    await ears.renewed(1)
    item = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
    for number in range(5):
        beat = {**item, "progress": {"percent": number}, "logs": [{"seq": number + 1, "level": "info", "message": "x"}]}
        answer = await service.worker.post(
            "/v1/attempts/heartbeat", json={"workerId": "w", "instanceId": "i", "attempts": [beat]}
        )
        assert answer.status_code == 200
    await service.submit(type="demo/last")
    await wait_until_async(lambda: any("demo/last" in payload for payload in ears.heard))
    assert len(ears.heard) == 1


def _through(url: str, port: int) -> str:
    head, _, tail = url.rpartition("@")
    host = tail.partition("/")[0].rpartition(":")[0]
    return f"{head}@{host}:{port}/{tail.partition('/')[2]}"
