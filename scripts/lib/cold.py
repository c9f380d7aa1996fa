"""The figure `cold`: what an execution environment of each built function costs until it has answered once.

Each function runs under Lambda's runtime emulator as it was built, next to two of the same layer in the same run: `bare`, of Starlette
and Mangum, and `libraries`, which imports the database's driver and the models' libraries besides: less than that no function can
cost. `init` is the import of the entry in a process of its own (processor time: it is less disturbed by neighbours, and what Lambda's
half a processor stretches); `first` is the first answer of a new environment, by the clock, `warm` the next.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from built import Built, build_once, find_python
from emulator import Emulator
from gateway import make_event, read_answer
from template import read_functions

ROUNDS = 5
BARE = """
from mangum import Mangum
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def answer(request):
    return JSONResponse({"ok": True})

handler = Mangum(Starlette(routes=[Route("/", answer)]), lifespan="off")
"""
#: By name: what stands beside the functions, as sources of an app.py.
BESIDE = {"bare": BARE, "libraries": BARE + "\nimport msgspec, psycopg, pydantic\npydantic.BaseModel\n"}
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def measure() -> None:
    """Prints a line for each function with its ratio to the bare one."""
    built = build_once()
    layer = built.artifact("CoreLayer") / "python"
    with tempfile.TemporaryDirectory() as name:
        beside = {each: Path(name) / each for each in BESIDE}
        for each, folder in beside.items():
            folder.mkdir()
            (folder / "app.py").write_text(BESIDE[each])
        subprocess.run([str(find_python()), "-m", "compileall", "-q", name], check=True)
        tasks = beside | {f.name: built.artifact(f.logical_id) for f in read_functions() if f.routes or f.every_seconds}
        found = {name: ([], []) for name in tasks}  # type: dict[str, tuple[list[float], list[float]]]
        for _ in range(ROUNDS):  # in turn, so that a busy moment meets all of them
            for function, task in tasks.items():
                seconds, kilobytes = _import(task, layer)
                found[function][0].append(seconds)
                found[function][1].append(kilobytes)
        least = statistics.median(found["bare"][0])
        print(f"layer {_size(layer) / 1e6:.1f} MB unpacked; median of {ROUNDS}")
        print(f"{'function':<12}{'init':>9}{'÷ bare':>8}{'memory':>10}{'size':>9}{'first':>10}{'warm':>9}")
        for function, task in tasks.items():
            init, memory = statistics.median(found[function][0]), statistics.median(found[function][1])
            first, warm = _answer(built, function, task, layer)
            told = f"{init * 1000:6.0f} ms{init / least:8.2f}{memory / 1024:7.0f} MB{_size(task) / 1000:6.0f} kB"
            print(f"{function:<12}{told}" + (f"{first * 1000:7.0f} ms{warm * 1000:6.1f} ms" if first else ""))


def _import(task: Path, layer: Path) -> tuple[float, float]:
    """Processor seconds and most kilobytes of a process that imports the entry and ends."""
    environment = {
        "PYTHONPATH": f"{task}{os.pathsep}{layer}",
        "INTERLOCK_SERVER_DATABASE_URL": NOWHERE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",  # noqa: S108 (nothing is written there)
    }
    child = subprocess.Popen([str(find_python()), "-S", "-c", "import app"], env=environment, cwd=task)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{task.name} cannot be imported")
    return usage.ru_utime + usage.ru_stime, float(usage.ru_maxrss)


def _answer(built: Built, function: str, task: Path, layer: Path) -> tuple[float, float]:
    """Seconds of the first answer of a new environment, and of the next; zeros for one that takes no request."""
    if function in BESIDE:
        like = built.open("ClaimFunction", NOWHERE)
        emulator = Emulator(function, like.binary, like.python, task, [task, layer, built.runtime_client], {})
        target, route = "/", "GET /"
    else:
        (described,) = (f for f in read_functions() if f.name == function)
        if not described.routes:
            return 0.0, 0.0
        emulator = built.open(described.logical_id, NOWHERE)
        first = described.routes[0]
        target, route = first.path.replace("{", "").replace("}", ""), f"{first.method} {first.path}"
    method = route.partition(" ")[0]
    event = make_event(method, target, route=route, headers=[("host", "cold.test")])
    with emulator:
        times: Sequence[float] = [_timed(emulator, event) for _ in range(5)]
    return times[0], statistics.median(times[1:])


def _timed(emulator: Emulator, event: dict[str, object]) -> float:
    started = time.perf_counter()
    assert read_answer(emulator.invoke(event)).status in (200, 401), "no key was sent"
    return time.perf_counter() - started


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
