"""The figures of docs/benchmarks.md, measured: one service process, its Postgres and the clients on one machine.

Compare ratios within one run, not absolutes between machines. Nothing here is a condition of a test.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

import stream_figures
from costs import Meter
from load import Client, batches, drive, submits

ROOT = Path(__file__).resolve().parents[2]
NOOP = """
import sys, time
from interlock import TaskWorker
worker = TaskWorker(worker_id="bench", max_concurrent=200)
@worker.handle("bench/noop", 1, effect_safety="pure")
def noop(inp, ctx): return None
@worker.handle("bench/stamp", 1, effect_safety="pure")
def stamp(inp, ctx): return time.time()
"""


@contextmanager
def serve(folder: Path) -> Iterator[dict[str, Any]]:
    """A service of its own on `folder`; what dev.json says."""
    process = subprocess.Popen(
        [sys.executable, "scripts/lib/dev.py", "--port", "0", "--data", str(folder)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 60
        while not (folder / "dev.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the service did not start; try ./scripts/dev")
            time.sleep(0.05)
        yield json.loads((folder / "dev.json").read_text())
    finally:
        process.terminate()
        process.wait(15)


@contextmanager
def work(folder: Path, service: dict[str, Any]) -> Iterator[None]:
    """A worker process with handlers that do nothing."""
    (folder / "bench_worker.py").write_text(NOOP)
    environment = {
        **os.environ,
        "INTERLOCK_URL": service["serviceUrl"],
        "INTERLOCK_WORKER_KEY": service["keys"]["task-worker"],
        "XDG_STATE_HOME": str(folder),  # its spool goes away with the service that it is for
    }
    command = [sys.executable, "-m", "interlock.cli", "worker", "run", "bench_worker:worker"]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def accepted(status: int) -> bool:
    """Whether a submit was stored."""
    return status == 201


def submit(service: dict[str, Any], _folder: Path) -> None:
    count = 3000
    seconds, times = asyncio.run(
        drive(service["serviceUrl"], service["keys"]["task-producer"], 16, submits(count, "bench/stored"), accepted)
    )
    spread = f"p50 {percentile(times, 50):.1f} ms, p99 {percentile(times, 99):.1f} ms"
    print(f"submit, 16 clients                 {count / seconds:8.0f} /s    {spread}")


def batch(service: dict[str, Any], _folder: Path) -> None:
    seconds, _ = asyncio.run(
        drive(service["serviceUrl"], service["keys"]["task-producer"], 2, batches(20, 1000, "bench/stored"), accepted)
    )
    print(f"batch submit, 1,000 a call         {20_000 / seconds:8.0f} tasks/s")


def drain(service: dict[str, Any], folder: Path) -> None:
    print(f"drain, one worker process          {_drain_rate(service, folder, 20_000):8.0f} tasks/s")


async def _until_left(service: dict[str, Any], most: int) -> int:
    """Waits until at most `most` no-op tasks are left (all but one, for a start: something was done)."""
    client = Client(service["serviceUrl"], service["keys"]["operator"])
    await client.open()
    while True:
        _, body = await client.call("GET", "/v1/task-types/bench/noop/1")
        view = json.loads(body)
        left = int(view.get("queued", 0)) + int(view.get("running", 0))
        if left < most or left == 0:
            client.close()
            return left
        await asyncio.sleep(0.05)


def round_trip(service: dict[str, Any], folder: Path) -> None:
    """Sixteen clients submit one task after the other, each waiting for its result; one worker process."""
    clients, each = 16, 100
    with work(folder, service):
        asyncio.run(_ask_in_turn(service, 2, 2))  # the worker is there
        with Meter(service["databaseUrl"]) as meter:
            started = time.perf_counter()
            asyncio.run(_ask_in_turn(service, clients, each))
            taken = time.perf_counter() - started
    count = clients * each
    costs = f"{meter.costs.commits / count:.2f} commits and {meter.costs.log_bytes / count:.0f} bytes of log a task"
    print(f"submit → result, 16 clients        {count / taken:8.0f} tasks/s    {costs}")


async def _ask_in_turn(service: dict[str, Any], clients: int, each: int) -> None:
    body = json.dumps({"type": "bench/noop", "schemaVersion": 1, "input": {"pad": "x" * 120}}).encode()

    async def ask() -> None:
        client = Client(service["serviceUrl"], service["keys"]["task-producer"])
        await client.open()
        for _ in range(each):
            _, answer = await client.call("POST", "/v1/tasks", body)
            task_id = json.loads(answer)["id"]
            while json.loads((await client.call("GET", f"/v1/tasks/{task_id}?waitSeconds=20"))[1])["status"] != "succeeded":
                pass
        client.close()

    await asyncio.gather(*(ask() for _ in range(clients)))


def crowd(service: dict[str, Any], folder: Path) -> None:
    """A drain on empty tables, and one beside many rows that are settled, delayed or blocked by a key."""
    alone = _drain_rate(service, folder)
    with psycopg.connect(service["databaseUrl"], autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        for kind, count in (("settled", 1_000_000), ("delayed", 200_000), ("blocked", 5_000)):
            connection.execute(FILL, {"project": service["project"], "kind": kind, "count": count})
        connection.execute("ANALYZE tasks")
    beside = _drain_rate(service, folder)
    print(f"drain beside 1,205,000 rows ÷ alone     {beside / alone:4.2f}    {beside:.0f} and {alone:.0f} tasks/s")


def _drain_rate(service: dict[str, Any], folder: Path, count: int = 10_000) -> float:
    key = service["keys"]["task-producer"]
    asyncio.run(drive(service["serviceUrl"], key, 1, batches(count // 1000, 1000, "bench/noop"), accepted))
    with work(folder, service):
        asyncio.run(_until_left(service, count))
        started = time.perf_counter()
        left = asyncio.run(_until_left(service, 0))
        return (count - left) / (time.perf_counter() - started)


FILL = """
INSERT INTO tasks (id, project, type, schema_version, pool, priority, input, created_at, effect_scope, status, hold, due_at, finished_at,
                   concurrency_key, concurrency_limit)
SELECT gen_random_uuid(), %(project)s, 'crowd/t' || n %% 50, 1, 'default', 0, '{}', now() - interval '2 days', gen_random_uuid(),
       CASE %(kind)s WHEN 'settled' THEN 'succeeded' ELSE 'queued' END,
       CASE %(kind)s WHEN 'delayed' THEN 'due' WHEN 'blocked' THEN 'concurrency' END,
       CASE %(kind)s WHEN 'delayed' THEN now() + interval '30 days' ELSE now() END,
       CASE %(kind)s WHEN 'settled' THEN now() - interval '1 day' END,
       CASE %(kind)s WHEN 'blocked' THEN 'crowd' END, CASE %(kind)s WHEN 'blocked' THEN 1 END
FROM generate_series(1, %(count)s) n
"""


def latency(service: dict[str, Any], folder: Path) -> None:
    with work(folder, service):
        starts, ends = asyncio.run(_paced(service, 300, 20))
    print(f"submit → handler starts, 20/s      p50 {percentile(starts, 50):8.1f} ms, p99 {percentile(starts, 99):.1f} ms")
    print(f"submit → result seen by a waiter   p50 {percentile(ends, 50):8.1f} ms, p99 {percentile(ends, 99):.1f} ms")


async def _paced(service: dict[str, Any], count: int, per_second: float) -> tuple[list[float], list[float]]:
    starts: list[float] = []
    ends: list[float] = []

    async def one() -> None:
        client = Client(service["serviceUrl"], service["keys"]["task-producer"])
        await client.open()
        submitted = time.time()
        _, body = await client.call(
            "POST", "/v1/tasks", json.dumps({"type": "bench/stamp", "schemaVersion": 1, "input": None}).encode()
        )
        _, body = await client.call("GET", f"/v1/tasks/{json.loads(body)['id']}?waitSeconds=20")
        ends.append(time.time() - submitted)
        starts.append(json.loads(body)["result"] - submitted)
        client.close()

    running = [asyncio.create_task(one())]
    await running[0]  # the worker is there
    starts.clear()
    ends.clear()
    for _ in range(count):
        running.append(asyncio.create_task(one()))
        await asyncio.sleep(1 / per_second)
    await asyncio.gather(*running)
    return starts, ends


def percentile(times: list[float], percent: int) -> float:
    """In milliseconds."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] * 1000


FIGURES = {
    "submit": submit,
    "batch": batch,
    "drain": drain,
    "round_trip": round_trip,
    "latency": latency,
    "crowd": crowd,
    "streams": stream_figures.measure,
}


def main() -> None:
    wanted = sys.argv[1:] or list(FIGURES)
    if wanted == ["cold"]:  # asks for a build, and for no service
        from cold import measure  # noqa: PLC0415

        measure()
        return
    if unknown := set(wanted) - set(FIGURES):
        raise SystemExit(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serve(folder / "data") as service:
            for figure in wanted:
                FIGURES[figure](service, folder)


if __name__ == "__main__":
    main()
