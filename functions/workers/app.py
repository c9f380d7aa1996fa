"""Registration of worker programs, and the end of their processes."""

from __future__ import annotations

from typing import Any

from interlock_core import workers
from interlock_core.entry import lambda_handler
from interlock_core.errors import InvalidRequest
from interlock_core.http import Call, api, endpoint
from interlock_core.wire.operator import Nothing
from interlock_core.wire.registration import Register
from interlock_core.wire.rules import is_path_name

WORKER = ("task-worker",)


@endpoint("PUT", "/v1/workers/{workerId}", keys=WORKER, body=Register)
async def register(call: Call) -> dict[str, Any]:
    """Say what a worker program serves; replaces what its worker id said before."""
    worker_id = call.path("workerId")
    if not is_path_name(worker_id):
        raise InvalidRequest(
            "workerId must be 1 to 128 of letters, digits, '.', '_', '-', starting with a letter or digit", "/workerId"
        )
    schemas = workers.schema_texts(call.text, call.body)
    inputs = workers.input_texts(call.text, call.body)
    return await workers.register(call.database, call.settings, call.key, worker_id, call.body, schemas, inputs)


@endpoint("DELETE", "/v1/workers/{workerId}/instances/{instanceId}", keys=WORKER)
async def remove_instance(call: Call) -> dict[str, Any]:
    """Take a worker process that ends off the list; its registration stays."""
    return await workers.remove(call.database, call.key, call.path("workerId"), call.path("instanceId"))


@endpoint("POST", "/v1/workers/{workerId}/drain", keys=("operator",), body=Nothing)
async def drain(call: Call) -> dict[str, Any]:
    """Ask the processes of a worker that are alive now to claim no more, finish and end."""
    return await workers.drain(call.database, call.key, call.path("workerId"))


@endpoint("DELETE", "/v1/workers/{workerId}", keys=("operator",))
async def remove(call: Call) -> dict[str, Any]:
    """Take a worker's registration away; its running attempts go on."""
    return await workers.unregister(call.database, call.key, call.path("workerId"))


app = api(register, remove_instance, drain, remove)
handler = lambda_handler(app)
