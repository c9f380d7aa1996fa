"""Reading tasks."""

from __future__ import annotations

from typing import Any

from interlock_core import tasks
from interlock_core.errors import InvalidRequest
from interlock_core.http import Call, api, endpoint, lambda_handler
from interlock_core.states import ENDS
from interlock_core.wire import cursors
from interlock_core.wire.queries import TaskFilter, query, task_filter

READERS = ("task-producer", "operator")


@endpoint("GET", "/v1/tasks/{id}", keys=READERS)
async def get(call: Call) -> dict[str, Any]:
    """One task; `include=attempts` adds its attempts, `waitSeconds` waits for its end where the host holds waits."""
    given = query(call.request, ("include", "waitSeconds"))
    include = {part for text in given.get("include", []) for part in text.split(",")}
    if unknown := include - {"attempts", ""}:
        raise InvalidRequest(f"include knows attempts, not {', '.join(sorted(unknown))[:80]}", "/include")
    task_id = call.path_id()
    row = await tasks.find(call.database, call.key.project, task_id)
    seconds = cursors.wait_seconds(given.get("waitSeconds", [None])[-1])
    if seconds and row.status not in ENDS:
        hold = getattr(call.request.app.state, "hold_wait", None)
        if hold is not None:
            row = await hold(call.database, call.key.project, row, seconds)
    view = await tasks.show(call.database, call.settings, call.key.project, row)
    if "attempts" in include:
        view["attemptList"] = await tasks.attempts(call.database, task_id)
    return view


@endpoint("GET", "/v1/tasks", keys=READERS)
async def find_all(call: Call) -> dict[str, Any]:
    """Tasks of the project, newest first; list items leave out input and result."""
    given = query(call.request, (*TaskFilter.NAMES, "limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    filters, scope = task_filter(given)
    scope = ["tasks", call.key.project, scope]
    after = cursors.read(scope, given.get("cursor", [None])[-1], 2)
    rows = await tasks.find_all(call.database, call.key.project, filters, after, limit)
    page, more = rows[:limit], len(rows) > limit
    return {
        "items": await tasks.show_all(call.database, call.settings, call.key.project, page),
        "nextCursor": cursors.write(scope, [page[-1].created_at, page[-1].id]) if more else None,
    }


@endpoint("GET", "/v1/tasks/{id}/journal", keys=READERS)
async def journal(call: Call) -> dict[str, Any]:
    """Events of a task in order, after `after`."""
    given = query(call.request, ("after", "limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    task_id = call.path_id()
    scope = ["journal", call.key.project, str(task_id)]
    cursor = cursors.read(scope, given.get("cursor", [None])[-1], 1)
    after = int(cursor[0]) if cursor else cursors.after_seq(given.get("after", [None])[-1])
    events = await tasks.journal(call.database, call.key.project, task_id, after, limit)
    page = cursors.fitting(events[:limit])
    more = len(events) > len(page)
    return {"items": page, "nextCursor": cursors.write(scope, [page[-1]["seq"]]) if more else None}


app = api(find_all, get, journal)
handler = lambda_handler(app)
