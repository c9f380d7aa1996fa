"""Reading: tasks, task types, workers, the health of the service, and what it says of itself without a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import interlock_core
from interlock_core import doctor as health
from interlock_core import metrics as figures
from interlock_core import overview, steps, tasks
from interlock_core.entry import lambda_handler
from interlock_core.errors import InvalidRequest
from interlock_core.http import Answer, Call, api, endpoint
from interlock_core.wire import cursors
from interlock_core.wire.queries import TaskFilter, named_type, query, task_filter

READERS = ("task-producer", "operator")
ANYBODY = ("task-producer", "task-worker", "operator", "metrics", "admin")
STATIC = Path(interlock_core.__file__).parent / "static"


@endpoint("GET", "/v1/tasks/{id}", keys=READERS)
async def get(call: Call) -> dict[str, Any]:
    """One task; `include=attempts,steps,children` adds those, `waitSeconds` waits for its end where the host holds waits."""
    given = query(call.request, ("include", "waitSeconds"))
    include = {part for text in given.get("include", []) for part in text.split(",")}
    if unknown := include - {"attempts", "steps", "children", ""}:
        raise InvalidRequest(f"include knows attempts, steps and children, not {', '.join(sorted(unknown))[:80]}", "/include")
    task_id = call.path_id()
    seconds = cursors.wait_seconds(given.get("waitSeconds", [None])[-1])
    # the stream's host waits for hints; a function looks again for as long as its setting allows
    hold = getattr(call.request.app.state, "hold_wait", None) if seconds else None
    if hold is None:
        hold, seconds = tasks.wait, min(seconds, call.settings.function_wait_seconds)
    row = await hold(call.database, call.key.project, task_id, seconds)
    view = await tasks.show(call.database, call.settings, call.key.project, row)
    if "attempts" in include:
        view["attemptList"] = await tasks.attempts(call.database, task_id)
    if include & {"steps", "children"}:
        found = await steps.outline(call.database, task_id)
        view |= {name: found[name] for name in ("steps", "children") if name in include}
    return view


@endpoint("GET", "/v1/tasks/{id}/steps", keys=READERS)
async def list_steps(call: Call) -> dict[str, Any]:
    """The stored steps of a task with their outputs, in the order of their first events."""
    return await steps.page(call.database, *await _part(call))


@endpoint("GET", "/v1/tasks/{id}/children", keys=READERS)
async def list_children(call: Call) -> dict[str, Any]:
    """The children of a task with what became of them."""
    return await steps.children_page(call.database, *await _part(call))


async def _part(call: Call) -> tuple[steps.Reader, str | None, int]:
    given = query(call.request, ("limit", "cursor"))
    reader = steps.Reader(call.key, call.path_id())
    return reader, given.get("cursor", [None])[-1], cursors.page_limit(given.get("limit", [None])[-1])


@endpoint("GET", "/v1/tasks", keys=READERS)
async def find_all(call: Call) -> dict[str, Any]:
    """Tasks of the project, newest first; list items leave out input and result."""
    given = query(call.request, (*TaskFilter.NAMES, "limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    filters, asked = task_filter({name: values for name, values in given.items() if name in TaskFilter.NAMES})
    scope = ["tasks", call.key.project, asked]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.instant, UUID)
    rows = await tasks.find_all(call.database, call.key.project, filters, after, limit)
    page = rows[:limit]
    items = await tasks.show_all(call.database, call.settings, call.key.project, page)
    return cursors.page(scope, items, [[row.created_at, row.id] for row in page], more=len(rows) > limit)


@endpoint("GET", "/v1/tasks/{id}/journal", keys=READERS)
async def journal(call: Call) -> dict[str, Any]:
    """Events of a task in order, after `after`."""
    given = query(call.request, ("after", "limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    task_id = call.path_id()
    scope = ["journal", call.key.project, str(task_id)]
    cursor = cursors.read(scope, given.get("cursor", [None])[-1], cursors.number)
    after = cursor[0] if cursor else cursors.after_seq(given.get("after", [None])[-1])
    events = await tasks.journal(call.database, call.key.project, task_id, after, limit)
    page = cursors.fitting(events[:limit])
    more = len(events) > len(page)
    return {"items": page, "nextCursor": cursors.write(scope, [page[-1]["seq"]]) if more else None}


@endpoint("GET", "/v1/task-types", keys=READERS)
async def list_task_types(call: Call) -> dict[str, Any]:
    """Task types with their queues, capacity and outcomes."""
    given = query(call.request, ("limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    scope = ["task-types", call.key.project]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.name, cursors.number)
    names = await overview.type_names(call.database, call.key.project, (after[0], after[1]) if after else None, limit)
    page = names[:limit]
    items = await overview.task_types(call.database, call.settings, call.key.project, page)
    return cursors.page(scope, items, [list(name) for name in page], more=len(names) > limit)


@endpoint("GET", "/v1/task-types/{group}/{name}/{version}", keys=READERS)
async def get_task_type(call: Call) -> dict[str, Any]:
    """One task type in full: its handlers with their schemas and policies too."""
    query(call.request, ())
    task_type, version = named_type(call.path("group"), call.path("name"), call.path("version"))
    return await overview.task_type(call.database, call.settings, call.key.project, task_type, version)


@endpoint("GET", "/v1/workers", keys=READERS)
async def list_workers(call: Call) -> dict[str, Any]:
    """Workers by id, each with its state in a word, its handlers and its processes."""
    given = query(call.request, ("limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    scope = ["workers", call.key.project]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.name)
    ids = await overview.worker_ids(call.database, call.key.project, after[0] if after else None, limit)
    page = ids[:limit]
    items = await overview.workers(call.database, call.settings, call.key.project, page)
    return cursors.page(scope, items, [[name] for name in page], more=len(ids) > limit)


@endpoint("GET", "/v1/workers/{workerId}", keys=READERS)
async def get_worker(call: Call) -> dict[str, Any]:
    """One worker, with its running attempts."""
    query(call.request, ())
    return await overview.worker(call.database, call.settings, call.key.project, call.path("workerId"))


@endpoint("GET", "/v1/doctor", keys=("task-producer", "task-worker", "operator"))
async def doctor(call: Call) -> dict[str, Any]:
    """Is all well: clocks, queues, debts. A worker key sees itself and the queues of its types."""
    given = query(call.request, ("workerId",))
    lag = getattr(call.request.app.state, "stream_lag", None)  # where this host is the stream's too
    return await health.doctor(call.database, call.settings, call.key, given.get("workerId", [None])[-1], lag() if lag else None)


@endpoint("GET", "/v1/config", keys=ANYBODY)
async def config(call: Call) -> dict[str, Any]:
    """What a client must know of this service: stream, polling, features, limits."""
    query(call.request, ())
    return await health.config(call.database, call.settings)


@endpoint("GET", "/v1/metrics", keys=("operator", "metrics"))
async def metrics(call: Call) -> Answer:
    """Figures of the project as Prometheus text."""
    query(call.request, ())
    text = await figures.metrics(call.database, call.settings, call.key.project)
    # A host that is the stream's too answers here for both; a stream by itself has this path to itself.
    of_stream = getattr(call.request.app.state, "stream_figures", None)
    return Answer(text if of_stream is None else text + of_stream(), media_type=figures.CONTENT_TYPE)


@endpoint("GET", "/healthz")
async def healthz(_: Call) -> dict[str, str]:
    """The process answers. The database is not asked."""
    return {"status": "ok"}


@endpoint("GET", "/readyz")
async def readyz(call: Call) -> dict[str, str]:
    """The database answers and has the schema; 503 otherwise."""
    return await health.check_ready(call.database)


@endpoint("GET", "/openapi.json")
async def openapi(_: Call) -> Answer:
    """The OpenAPI document of this service."""
    return Answer((STATIC / "openapi.json").read_text(encoding="utf-8"))


@endpoint("GET", "/tasks.md")
async def tasks_page(_: Call) -> Answer:
    """The page for people and robots: what a task is and how to submit one."""
    return Answer((STATIC / "tasks.md").read_text(encoding="utf-8"), media_type="text/markdown")


def paths() -> list[tuple[str, str]]:
    """Every (method, path) of the service: the gateway sends here what none of its routes takes."""
    document = json.loads((STATIC / "openapi.json").read_text(encoding="utf-8"))
    return [(method, path) for path, item in document["paths"].items() for method in item]


app = api(
    find_all,
    get,
    journal,
    list_steps,
    list_children,
    list_task_types,
    get_task_type,
    list_workers,
    get_worker,
    doctor,
    config,
    metrics,
    healthz,
    readyz,
    openapi,
    tasks_page,
    elsewhere=paths,
)
handler = lambda_handler(app)
