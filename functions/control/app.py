"""Changing what is stored: cancel, resolve, rerun, bulk; pauses and limits."""

from __future__ import annotations

from typing import Any

from interlock_core import bulk as bulking
from interlock_core import cancel as cancelling
from interlock_core import controls, jsontext, tasks, tickets, waits
from interlock_core import rerun as rerunning
from interlock_core.entry import lambda_handler
from interlock_core.errors import InvalidRequest
from interlock_core.http import Answer, Call, api, endpoint
from interlock_core.wire import cursors
from interlock_core.wire.operator import Bulk, ConcurrencyLimit, Nothing, Rate, StreamTicket
from interlock_core.wire.producer import Cancel, Rerun, Resolve, Signal
from interlock_core.wire.queries import named_type, one_identifier, query, task_filter

BOTH = ("task-producer", "operator")
OPERATOR = ("operator",)


@endpoint("POST", "/v1/tasks/{id}/cancel", keys=BOTH, body=Cancel)
async def cancel(call: Call) -> dict[str, Any]:
    """Cancel a task: at once where nobody runs it, through its holder where somebody does."""
    await tasks.check_scope(call.database, call.key, call.path_id())
    return await cancelling.cancel(call.database, call.settings, call.key.project, call.path_id(), call.body.reason)


@endpoint("POST", "/v1/tasks/{id}/resolve", keys=OPERATOR, body=Resolve)
async def resolve(call: Call) -> dict[str, Any]:
    """Settle an outcome-unknown task as a person found it to be, or queue it again."""
    result = jsontext.members(call.text).get("result")
    return await tasks.resolve(call.database, call.settings, call.key, call.path_id(), call.body, result)


@endpoint("POST", "/v1/tasks/{id}/rerun", keys=BOTH, body=Rerun, status=201)
async def rerun(call: Call) -> Answer:
    """Make a new task of a settled one, with another input if given."""
    given = jsontext.members(call.text).get("input")
    view, new = await rerunning.rerun(call.database, call.settings, call.key, call.path_id(), call.body, given)
    return Answer(view, 201 if new else 200, {"location": f"/v1/tasks/{view['id']}"})


@endpoint("POST", "/v1/tasks/{id}/signals", keys=("task-producer",), body=Signal, status=201)
async def signal(call: Call) -> Answer:
    """Send a task a signal: kept until a wait takes it, stored once under its key."""
    await tasks.check_scope(call.database, call.key, call.path_id())
    payload = jsontext.members(call.text)["payload"]
    answer, new = await waits.signal(call.database, call.key.project, call.path_id(), call.body, payload)
    return Answer(answer, 201 if new else 200)


@endpoint("POST", "/v1/tasks/bulk", keys=OPERATOR, body=Bulk)
async def bulk(call: Call) -> dict[str, Any]:
    """Cancel or rerun up to 10,000 tasks of a filter."""
    given = {name: value if isinstance(value, list) else [str(value)] for name, value in call.body.filter.items()}
    filters, _ = task_filter(given, "/filter")
    return await bulking.bulk(call.database, call.settings, call.key, call.body, filters)


@endpoint("POST", "/v1/task-types/{group}/{name}/{version}/pause", keys=OPERATOR, body=Nothing)
async def pause_type(call: Call) -> dict[str, Any]:
    """Let nobody claim a type; running attempts go on."""
    return await controls.pause_type(call.database, call.key, *_type(call))


@endpoint("POST", "/v1/task-types/{group}/{name}/{version}/resume", keys=OPERATOR, body=Nothing)
async def resume_type(call: Call) -> dict[str, Any]:
    """Let a paused type be claimed again."""
    return await controls.resume_type(call.database, call.key, *_type(call))


@endpoint("POST", "/v1/project/pause", keys=OPERATOR, body=Nothing)
async def pause_project(call: Call) -> dict[str, Any]:
    """Let nobody claim anything of the project; submits are stored all the same."""
    return await controls.pause_project(call.database, call.key, True)


@endpoint("POST", "/v1/project/resume", keys=OPERATOR, body=Nothing)
async def resume_project(call: Call) -> dict[str, Any]:
    """Let the project's work be claimed again."""
    return await controls.pause_project(call.database, call.key, False)


@endpoint("GET", "/v1/limits", keys=OPERATOR)
async def limits(call: Call) -> dict[str, Any]:
    """Limits of concurrency keys that operators set, and the rate of submits."""
    given = query(call.request, ("key", "limit", "cursor"))
    name = one_identifier("key", given["key"][-1]) if "key" in given else None
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    scope = ["limits", call.key.project, name]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.name)
    found, rate = await controls.limits(call.database, call.key.project, name, after[0] if after else None, limit)
    page = found[:limit]
    return {**cursors.page(scope, page, [[item["key"]] for item in page], more=len(found) > limit), "rate": rate}


@endpoint("PUT", "/v1/limits", keys=OPERATOR, body=ConcurrencyLimit)
async def set_limit(call: Call) -> dict[str, Any]:
    """Let at most `limit` tasks hold the concurrency key `?key=`."""
    return await controls.set_limit(call.database, call.key, _key(call), call.body.limit)


@endpoint("DELETE", "/v1/limits", keys=OPERATOR)
async def drop_limit(call: Call) -> dict[str, Any]:
    """Let only the tasks' own limits count for the concurrency key `?key=`."""
    return await controls.set_limit(call.database, call.key, _key(call), None)


@endpoint("PUT", "/v1/limits/rate", keys=OPERATOR, body=Rate)
async def set_rate(call: Call) -> dict[str, Any]:
    """Limit the submits of each producer key; null for no limit."""
    if (call.body.per_second is None) != (call.body.burst is None):
        raise InvalidRequest("give perSecond and burst together, or null for both", "/burst")
    return await controls.set_rate(call.database, call.key, call.body.per_second, call.body.burst)


@endpoint("POST", "/v1/stream-tickets", keys=OPERATOR, body=StreamTicket, status=201)
async def create_ticket(call: Call) -> dict[str, Any]:
    """Make a ticket that opens one stream once, within a minute, for readers that cannot send a key."""
    return await tickets.create(call.database, call.key, call.body.path)


def _type(call: Call) -> tuple[str, int]:
    return named_type(call.path("group"), call.path("name"), call.path("version"))


def _key(call: Call) -> str:
    given = query(call.request, ("key",)).get("key")
    if not given:
        raise InvalidRequest("?key= names the concurrency key", "/key")
    return one_identifier("key", given[-1])


app = api(
    bulk, cancel, resolve, rerun, signal, pause_type, resume_type, pause_project, resume_project, limits, set_limit, drop_limit, set_rate,
    create_ticket,
)  # fmt: skip
handler = lambda_handler(app)
