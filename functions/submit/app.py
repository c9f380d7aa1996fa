"""Submitting tasks, one or many."""

from __future__ import annotations

from interlock_core import jsontext
from interlock_core import submit as submitting
from interlock_core.entry import lambda_handler
from interlock_core.http import Answer, Call, api, endpoint
from interlock_core.wire.producer import Submit, SubmitBatch


@endpoint("POST", "/v1/tasks", keys=("task-producer",), body=Submit, status=201)
async def submit(call: Call) -> Answer:
    """Store one task, or answer the task that its idempotency key already names."""
    submission = submitting.Submission(call.body, jsontext.members(call.text)["input"])
    view, new = await submitting.submit(call.database, call.settings, call.key, submission)
    return Answer(view, 201 if new else 200, {"location": f"/v1/tasks/{view['id']}"})


@endpoint("POST", "/v1/tasks/batch", keys=("task-producer",), body=SubmitBatch, status=201)
async def submit_batch(call: Call) -> Answer:
    """Store up to 1000 tasks, all or none."""
    texts = jsontext.elements(jsontext.members(call.text)["tasks"])
    submissions = [
        submitting.Submission(request, jsontext.members(text)["input"])
        for request, text in zip(call.body.tasks, texts, strict=True)
    ]
    return Answer({"items": await submitting.submit_batch(call.database, call.settings, call.key, submissions)}, 201)


app = api(submit, submit_batch)
handler = lambda_handler(app)
