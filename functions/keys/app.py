"""Keys of a project, and projects."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from interlock_core import controls, keys
from interlock_core.entry import lambda_handler
from interlock_core.http import Answer, Call, api, endpoint
from interlock_core.wire import cursors
from interlock_core.wire.operator import NewKey, NewProject, Nothing, Rotate
from interlock_core.wire.queries import query


@endpoint("POST", "/v1/keys", keys=("operator", "admin"), body=NewKey, status=201)
async def create_key(call: Call) -> Answer:
    """Make a key; its secret is in this answer only."""
    view = await keys.create(call.database, call.key, call.body)
    return Answer(view, 200 if view["duplicate"] else 201)


@endpoint("GET", "/v1/keys", keys=("operator",))
async def list_keys(call: Call) -> dict[str, Any]:
    """Keys of the project, newest first, without their secrets."""
    given = query(call.request, ("limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    scope = ["keys", call.key.project]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.instant, cursors.name)
    rows = await keys.find_all(call.database, call.key.project, after, limit)
    page = rows[:limit]
    items = [keys.view(row) for row in page]
    return cursors.page(scope, items, [[row.created_at, row.id] for row in page], more=len(rows) > limit)


@endpoint("POST", "/v1/keys/{id}/revoke", keys=("operator",), body=Nothing)
async def revoke_key(call: Call) -> dict[str, Any]:
    """Revoke a key of the project; it is refused everywhere within seconds."""
    return await keys.revoke(call.database, call.key, call.path("id"))


@endpoint("POST", "/v1/keys/{id}/rotate", keys=("operator",), body=Rotate, status=201)
async def rotate_key(call: Call) -> Answer:
    """Make a new key with the rights of the old one, which lives on for a stated overlap."""
    view = await keys.rotate(call.database, call.key, call.path("id"), call.body)
    return Answer(view, 200 if view["duplicate"] else 201)


@endpoint("GET", "/v1/audit", keys=("operator",))
async def audit(call: Call) -> dict[str, Any]:
    """Who did what, when, to what: newest first."""
    given = query(call.request, ("limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    scope = ["audit", call.key.project]
    after = cursors.read(scope, given.get("cursor", [None])[-1], cursors.instant, UUID)
    rows = await controls.audit(call.database, call.key.project, after, limit)
    page = rows[:limit]
    items = [controls.audit_view(row) for row in page]
    return cursors.page(scope, items, [[row.at, row.id] for row in page], more=len(rows) > limit)


@endpoint("POST", "/v1/projects", keys=("admin",), body=NewProject, status=201)
async def create_project(call: Call) -> Answer:
    """Make a project; the same name again answers the project that there is."""
    body: NewProject = call.body
    view = await keys.create_project(call.database, call.key.id, body.name, body.idempotency_key, body.require_worker)
    return Answer(view, 200 if view["duplicate"] else 201)


@endpoint("GET", "/v1/projects", keys=("admin",))
async def list_projects(call: Call) -> dict[str, Any]:
    """Projects by name."""
    given = query(call.request, ("limit", "cursor"))
    limit = cursors.page_limit(given.get("limit", [None])[-1])
    after = cursors.read(["projects"], given.get("cursor", [None])[-1], cursors.name)
    rows = await keys.projects(call.database, after[0] if after else None, limit)
    page = rows[:limit]
    return cursors.page(["projects"], page, [[row["name"]] for row in page], more=len(rows) > limit)


app = api(create_key, list_keys, revoke_key, rotate_key, audit, create_project, list_projects)
handler = lambda_handler(app)
