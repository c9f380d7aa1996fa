"""Reports of workers: heartbeat, complete, release, as batches and in their single forms."""

from __future__ import annotations

import logging
from typing import Any

from interlock_core import attempts, claims, jsontext, reports, steps
from interlock_core.entry import lambda_handler
from interlock_core.errors import Internal, InvalidRequest, Problem
from interlock_core.http import Call, api, endpoint
from interlock_core.wire import cursors
from interlock_core.wire.claim import Claim
from interlock_core.wire.queries import query
from interlock_core.wire.reports import Beat, Complete, Completion, Giveback, Heartbeat, Ids, Release, StepReport
from interlock_core.wire.structs import Body

log = logging.getLogger("interlock.http")

WORKER = ("task-worker",)
Outcome = dict[str, Any] | Problem


def _rendered(items: list[reports.Item], answers: list[Outcome]) -> list[dict[str, Any]]:
    return [
        {"attemptId": i.attempt_id, "error": a.body()} if isinstance(a, Problem) else a
        for i, a in zip(items, answers, strict=True)
    ]


@endpoint("POST", "/v1/attempts/heartbeat", keys=WORKER, body=Heartbeat, lenient=True)
async def heartbeat(call: Call) -> dict[str, Any]:
    """Renew every lease of a worker, store progress and logs, and mark the instance alive."""
    body = call.body
    call.key.check_worker(body.worker_id, None, [])
    items = reports.items(Beat, body.attempts, call.text, "attempts")
    who = {"worker_id": body.worker_id, "instance_id": body.instance_id, "draining": body.draining, "slots": body.slots}
    answers, extra = await attempts.heartbeat(call.database, call.key, items, who)
    return {"attempts": _rendered(items, answers), **extra}


@endpoint("POST", "/v1/attempts/complete", keys=WORKER, body=Complete, lenient=True)
async def complete(call: Call) -> dict[str, Any]:
    """Take outcomes, and claim the next work in the same round trip; completions commit first."""
    items = reports.items(Completion, call.body.completions, call.text, "completions")
    answer: dict[str, Any] = {"completions": _rendered(items, await attempts.complete(call.database, call.key, items))}
    if call.body.claim is not None:
        try:
            asked = jsontext.parse(jsontext.members(call.text)["claim"], "/claim")  # a claim is no report: strictly
            answer["claim"] = await claims.claim(call.database, call.settings, call.key, Claim.read(asked, "/claim"))
        except Problem as refusal:  # the outcomes are stored: their answer must not be lost over the claim
            answer["claim"] = {"error": refusal.body()}
        except Exception:  # nor over a defect
            log.exception("the claim beside %d completions failed", len(items))
            answer["claim"] = {"error": Internal().body()}
    return answer


@endpoint("POST", "/v1/attempts/release", keys=WORKER, body=Release, lenient=True)
async def release(call: Call) -> dict[str, Any]:
    """Give attempts back, or a whole claim whose answer never came."""
    body = call.body
    if body.attempts is not None:
        items = reports.items(Giveback, body.attempts, call.text, "attempts")
        return {"attempts": _rendered(items, await attempts.release(call.database, call.key, items))}
    if body.worker_id is None or body.instance_id is None or body.claim_id is None:
        raise InvalidRequest("give attempts, or workerId, instanceId and claimId")
    call.key.check_worker(body.worker_id, None, [])
    return {"attempts": await attempts.release_claim(call.database, call.key, body.worker_id, body.instance_id, body.claim_id)}


def _single(call: Call, model: type[reports.Report]) -> list[reports.Item]:
    """The one item of a single form: the path's ids stand in for absent ones, or null, and must not contradict those given."""
    value = dict(call.value)
    for name in ("taskId", "attemptId"):
        if value.get(name) is None:
            value[name] = call.path(name)
        elif value[name] != call.path(name):
            raise InvalidRequest(f"{name} is not the one in the path", f"/{name}")
    return [reports.item(model, value, call.text, "")]


class Single(Body):
    """The body of a single form; its fields are those of one item."""


@endpoint("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/heartbeat", keys=WORKER, body=Single, lenient=True)
async def heartbeat_one(call: Call) -> dict[str, Any]:
    """Renew one lease."""
    answers, extra = await attempts.heartbeat(call.database, call.key, _single(call, Beat), None)
    return {**_only(answers), **extra}


@endpoint("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/complete", keys=WORKER, body=Single, lenient=True)
async def complete_one(call: Call) -> dict[str, Any]:
    """Take one outcome."""
    return _only(await attempts.complete(call.database, call.key, _single(call, Completion)))


@endpoint("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/release", keys=WORKER, body=Single, lenient=True)
async def release_one(call: Call) -> dict[str, Any]:
    """Give one attempt back."""
    return _only(await attempts.release(call.database, call.key, _single(call, Giveback)))


@endpoint("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/steps", keys=WORKER, body=Single)
async def store_step(call: Call) -> dict[str, Any]:
    """Store what became of a step; the first final outcome is kept and returned ever after."""
    item = _one(call, StepReport)
    return await steps.store(call.database, call.key, item.model, item.text.get("output"))


@endpoint("POST", "/v1/tasks/{taskId}/attempts/{attemptId}/children", keys=WORKER, body=Single)
async def spawn_child(call: Call) -> dict[str, Any]:
    """Submit a child of the running attempt, once per name."""
    from interlock_core import children  # noqa: PLC0415  # all that a submit is made of, which no other report needs
    from interlock_core.wire.children import ChildSubmit  # noqa: PLC0415

    item = _one(call, ChildSubmit)
    return await children.spawn(call.database, call.settings, call.key, item.model, item.text["input"])


@endpoint("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/steps", keys=WORKER)
async def attempt_steps(call: Call) -> dict[str, Any]:
    """Stored steps of the task that the attempt runs: what did not fit into its claim."""
    return await steps.page(call.database, *await _held(call))


@endpoint("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/children", keys=WORKER)
async def attempt_children(call: Call) -> dict[str, Any]:
    """The children of the task that the attempt runs, with their results."""
    return await steps.children_page(call.database, *await _held(call))


@endpoint("GET", "/v1/tasks/{taskId}/attempts/{attemptId}/signals", keys=WORKER)
async def attempt_signals(call: Call) -> dict[str, Any]:
    """The signals that no wait of the task has taken yet."""
    return await steps.signals_page(call.database, *await _held(call))


def _one(call: Call, model: type[reports.Report]) -> reports.Item:
    (item,) = _single(call, model)
    if item.refusal is not None:
        raise item.refusal
    return item


async def _held(call: Call) -> tuple[steps.Reader, str | None, int]:
    """What a page of an attempt's reads needs: who reads, the cursor, the limit; the lease stands in the headers."""
    given = query(call.request, ("cursor", "limit"))
    task_id = call.path_id("taskId")
    headers = call.request.headers
    ids = {"taskId": str(task_id), "attemptId": str(call.path_id("attemptId")), "leaseToken": headers.get("x-lease-token")}
    fence = headers.get("x-fence", "")
    if not (fence.isascii() and fence.isdigit() and len(fence) < 10) or not ids["leaseToken"]:
        raise InvalidRequest("the headers X-Fence and X-Lease-Token must carry the attempt's fence and lease token")
    reader = steps.Reader(call.key, task_id, reports.fence(Ids.read(ids | {"fence": int(fence)})))
    return reader, given.get("cursor", [None])[-1], cursors.page_limit(given.get("limit", [None])[-1])


def _only(answers: list[Outcome]) -> dict[str, Any]:
    answer = answers[0]
    if isinstance(answer, Problem):
        raise answer
    return answer


app = api(
    heartbeat, complete, release, heartbeat_one, complete_one, release_one, store_step, spawn_child, attempt_steps,
    attempt_children, attempt_signals,
)  # fmt: skip
handler = lambda_handler(app)
