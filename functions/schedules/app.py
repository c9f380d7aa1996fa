"""Schedules: what is to be submitted when."""

from __future__ import annotations

from typing import Any

from interlock_core import jsontext, schedules
from interlock_core.entry import lambda_handler
from interlock_core.errors import InvalidRequest
from interlock_core.http import Answer, Call, api, endpoint
from interlock_core.wire import cursors
from interlock_core.wire.operator import Nothing
from interlock_core.wire.queries import query
from interlock_core.wire.rules import is_path_name
from interlock_core.wire.schedules import Schedule, Trigger

BOTH = ("task-producer", "operator")
NAME = "must be 1 to 128 of letters, digits, '.', '_', '-', starting with a letter or digit"


@endpoint("PUT", "/v1/schedules/{name}", keys=BOTH, body=Schedule)
async def put(call: Call) -> Answer:
    """Make or change a schedule; the same again changes nothing."""
    owner, name = _place(call)
    if not is_path_name(name):
        raise InvalidRequest(f"the name {NAME}", "/name")
    if call.body.name not in (None, name):
        raise InvalidRequest("the name is not that of the path", "/name")
    given = jsontext.members(call.text)["input"]
    view, new = await schedules.put(call.database, call.settings, call.key, schedules.Wanted(owner, name, call.body, given))
    return Answer(view, 201 if new else 200)


@endpoint("GET", "/v1/schedules/{name}", keys=BOTH)
async def get(call: Call) -> dict[str, Any]:
    """One schedule, with its next five firings and the last one."""
    return await schedules.find(call.database, call.key.project, *_place(call))


@endpoint("DELETE", "/v1/schedules/{name}", keys=BOTH)
async def remove(call: Call) -> dict[str, Any]:
    """Take a schedule away; tasks that it made go on."""
    return await schedules.remove(call.database, call.key, *_place(call))


@endpoint("GET", "/v1/schedules", keys=BOTH)
async def find_all(call: Call) -> dict[str, Any]:
    """Schedules by owner and name; list items leave out the input."""
    given = query(call.request, ("owner", "limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    owner = _owner(given)
    scope = ["schedules", call.key.project, owner]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.name, cursors.name)
    found = await schedules.find_all(call.database, call.key.project, owner, (after[0], after[1]) if after else None, limit)
    page = found[:limit]
    return cursors.page(scope, [view for _, view in page], [list(place) for place, _ in page], more=len(found) > limit)


@endpoint("POST", "/v1/schedules/{name}/pause", keys=BOTH, body=Nothing)
async def pause(call: Call) -> dict[str, Any]:
    """Let a schedule fire no more until it is resumed."""
    return await schedules.pause(call.database, call.key, *_place(call))


@endpoint("POST", "/v1/schedules/{name}/resume", keys=BOTH, body=Nothing)
async def resume(call: Call) -> dict[str, Any]:
    """Let a schedule fire again, from its next instant on."""
    return await schedules.resume(call.database, call.key, *_place(call))


@endpoint("POST", "/v1/schedules/{name}/trigger", keys=BOTH, body=Trigger, status=201)
async def trigger(call: Call) -> Answer:
    """Make a task of a schedule at once."""
    owner, name = _place(call)
    view, new = await schedules.trigger(call.database, call.settings, call.key, owner, name, call.body.idempotency_key)
    return Answer(view, 201 if new else 200, {"location": f"/v1/tasks/{view['id']}"})


def _place(call: Call) -> tuple[str, str]:
    """(owner, name); the owner is '' where no worker is named."""
    return _owner(query(call.request, ("owner",))) or "", call.path("name")


def _owner(given: dict[str, list[str]]) -> str | None:
    if "owner" not in given:
        return None
    owner = given["owner"][-1]
    if not is_path_name(owner):
        raise InvalidRequest(f"owner is a worker id: it {NAME}", "/owner")
    return owner


app = api(put, get, remove, find_all, pause, resume, trigger)
handler = lambda_handler(app)
