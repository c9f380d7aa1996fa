"""`kill -9` of the service and its database under load: every answered submit and completion is there after the restart."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

from interlock import InterlockError, TaskProducer
from support.dev_service import DevService, StartService
from support.owner import children_of, is_alive, kill_all
from support.waiting import wait_until
from support.worker_process import StartWorker


class Load:
    """A producer thread that submits under keys until told to stop, and remembers what was answered."""

    def __init__(self, node: DevService, name: str) -> None:
        self.answered: dict[str, str] = {}  # key → task id
        self._name = name
        self._producer = TaskProducer(node.url, node.key("task-producer"), timeout=60)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._producer:
            number = 0
            while not self._stop.is_set():
                number += 1
                key = f"{self._name}-{number}"
                try:
                    self.answered[key] = self._producer.submit("chaos/quick", 1, key, idempotency_key=key).id
                except InterlockError:
                    continue  # not answered: nothing is promised

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(70)
        assert not self._thread.is_alive()


StartLoad = Callable[[DevService, str], Load]


@pytest.fixture
def start_load() -> Iterator[StartLoad]:
    started: list[Load] = []

    def start(node: DevService, name: str) -> Load:
        started.append(Load(node, name))
        return started[-1]

    yield start
    for load in started:
        load.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victims", ["service", "service and database"])
def test_nothing_answered_is_lost(
    start_service: StartService, start_worker: StartWorker, start_load: StartLoad, victims: str
) -> None:
    node = start_service(INTERLOCK_SERVER_MIN_LEASE_SECONDS="1")
    workers = [start_worker(node.url, node.key("task-worker"), slots=5) for _ in range(2)]
    loads = [start_load(node, f"load{n}") for n in range(3)]

    def go_on() -> None:
        began = sum(len(load.answered) for load in loads)
        wait_until(lambda: sum(len(load.answered) for load in loads) > began + 50, timeout=60)

    for _ in range(2):
        go_on()
        below = children_of(node.pid)
        kill_all(below if victims == "service and database" else ())
        node.kill()
        wait_until(lambda below=below: not [pid for pid in below if is_alive(pid)])
        node.restart()
    go_on()
    for load in loads:
        load.stop()

    answered = {key: task for load in loads for key, task in load.answered.items()}
    with psycopg.connect(node.info["databaseUrl"], autocommit=True) as look:

        def unsettled() -> int:
            row = look.execute("SELECT count(*) FROM tasks WHERE status <> 'succeeded'").fetchone()
            assert row is not None
            return int(row[0])

        wait_until(lambda: unsettled() == 0, timeout=60, every=0.1)
        stored = dict(look.execute("SELECT idempotency_key, id::text FROM tasks WHERE idempotency_key IS NOT NULL").fetchall())
        assert {key: stored.get(key) for key in answered} == answered
        results = look.execute("SELECT count(*) FROM tasks WHERE result <> input").fetchone()
        assert results == (0,)
        expired = look.execute("SELECT task_id::text FROM journal WHERE kind = 'lease-expired'").fetchall()
        expiries = Counter(task for (task,) in expired)
        ends = look.execute(
            "SELECT max(n) FROM (SELECT count(*) n FROM journal WHERE kind = 'succeeded' GROUP BY task_id) x"
        ).fetchone()
        assert ends == (1,)
    for worker in workers:
        wait_until(lambda worker=worker: not worker.spooled(), timeout=30)
    runs = sum((worker.runs() for worker in workers), Counter[str]())
    assert {task: n for task, n in runs.items() if n > 1 + expiries[task]} == {}
    assert set(answered.values()) <= set(runs)
