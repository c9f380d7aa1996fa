"""The figure `cold`: what an execution environment of each built function costs until it has answered once.

Each function runs under Lambda's runtime client as it was built, next to three of the same layer in the same run: `bare`, of
Starlette and Mangum; `driver`, which imports the database's driver and msgspec besides: less than that no function can cost; and
`models`, which imports pydantic too. `init` is what Lambda counts as such: from the start of the runtime until it asks for its first
event (processor time: it is less disturbed by neighbours than the clock); `first` is the first answer of a new environment,
by the clock and with the emulator's own start, `warm` the next.
"""

from __future__ import annotations

import os
import socket
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

ROUNDS = 15
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
BESIDE = {
    "bare": BARE,
    "driver": BARE + "\nimport msgspec, psycopg\n",
    "models": BARE + "\nimport msgspec, psycopg, pydantic\npydantic.BaseModel\n",
}
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
        found = {name: [] for name in tasks}  # type: dict[str, list[tuple[float, float, float]]]
        for _ in range(ROUNDS):
            # Each beside a bare one of its own: a machine is faster at one moment than at the next.
            for function, task in tasks.items():
                least, _ = _init(built, beside["bare"], layer)
                seconds, kilobytes = _init(built, task, layer)
                found[function].append((seconds, kilobytes, seconds / least))
        print(f"layer {_size(layer) / 1e6:.1f} MB unpacked; medians of {ROUNDS}, each beside a bare one of its own")
        print(f"{'function':<12}{'init':>9}{'÷ bare':>8}{'memory':>10}{'size':>9}{'first':>10}{'warm':>9}")
        for function, task in tasks.items():
            init, memory, ratio = (statistics.median(values) for values in zip(*found[function], strict=True))
            first, warm = _answer(built, function, task, layer)
            told = f"{init * 1000:6.0f} ms{ratio:8.2f}{memory / 1024:7.0f} MB{_size(task) / 1000:6.0f} kB"
            print(f"{function:<12}{told}" + (f"{first * 1000:7.0f} ms{warm * 1000:6.1f} ms" if first else ""))


def _init(built: Built, task: Path, layer: Path) -> tuple[float, float]:
    """Processor seconds and most kilobytes of a runtime that was started and has asked for its first event."""
    with socket.create_server(("127.0.0.1", 0)) as api:
        api.settimeout(60)
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, (task, layer, built.runtime_client))),
            "INTERLOCK_SERVER_DATABASE_URL": NOWHERE,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": tempfile.gettempdir(),
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{api.getsockname()[1]}",
            "LAMBDA_TASK_ROOT": str(task),
        }
        child = subprocess.Popen([str(find_python()), "-S", "-m", "awslambdaric", "app.handler"], env=environment, cwd=task)
        try:
            asked, _ = api.accept()
            asked.settimeout(60)
            request = asked.recv(1000)
        finally:
            child.kill()  # while it waits: answered, it would go on
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        asked.close()
    if b"/invocation/next" not in request:
        raise SystemExit(f"{task.name} cannot be imported: {request.decode(errors='replace')}")
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
