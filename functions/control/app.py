"""Cancelling and resolving tasks."""

from __future__ import annotations

from typing import Any

from interlock_core import jsontext, tasks
from interlock_core.http import Call, api, endpoint, lambda_handler
from interlock_core.wire.producer import Cancel, Resolve


@endpoint("POST", "/v1/tasks/{id}/cancel", keys=("task-producer", "operator"), body=Cancel)
async def cancel(call: Call) -> dict[str, Any]:
    """Cancel a task: at once where nobody runs it, through its holder where somebody does."""
    return await tasks.cancel(call.database, call.settings, call.key.project, call.path_id(), call.body.reason)


@endpoint("POST", "/v1/tasks/{id}/resolve", keys=("operator",), body=Resolve)
async def resolve(call: Call) -> dict[str, Any]:
    """Settle an outcome-unknown task as a person found it to be, or queue it again."""
    result = jsontext.members(call.text).get("result")
    return await tasks.resolve(call.database, call.settings, call.key, call.path_id(), call.body, result)


app = api(cancel, resolve)
handler = lambda_handler(app)
