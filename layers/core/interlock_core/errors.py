"""Every refusal of the service, as one tree (protocol.md §12).

    Problem                      code, status, retryable, a default `next`
    ├── InvalidJson              400 INVALID_JSON
    ├── InvalidRequest           400 INVALID_REQUEST      errors: [{pointer, message}]
    ├── InvalidType              400 INVALID_TYPE
    ├── InvalidCursor            400 INVALID_CURSOR
    ├── Unauthenticated          401 UNAUTHENTICATED
    ├── KeyRevoked               401 KEY_REVOKED
    ├── ScopeDenied              403 SCOPE_DENIED
    ├── NotFound                 404 NOT_FOUND
    ├── TaskTypeNotFound         404 TASK_TYPE_NOT_FOUND
    ├── MethodNotAllowed         405 METHOD_NOT_ALLOWED
    ├── StaleAttempt             409 STALE_ATTEMPT
    ├── EpochChanged             409 EPOCH_CHANGED
    ├── IdempotencyConflict      409 IDEMPOTENCY_CONFLICT
    ├── TaskFinished             409 TASK_FINISHED
    ├── TaskNotFinished          409 TASK_NOT_FINISHED
    ├── TaskNotUnknown           409 TASK_NOT_UNKNOWN
    ├── OutcomeUnknown           409 OUTCOME_UNKNOWN
    ├── WorkerIdConflict         409 WORKER_ID_CONFLICT
    ├── PayloadTooLarge          413 PAYLOAD_TOO_LARGE
    ├── UnsupportedMediaType     415 UNSUPPORTED_MEDIA_TYPE
    ├── LimitExceeded            422 LIMIT_EXCEEDED
    ├── RateLimited              429 RATE_LIMITED         Retry-After
    ├── Internal                 500 INTERNAL
    ├── Unavailable              503 UNAVAILABLE          Retry-After
    ├── NoEligibleWorker         503 NO_ELIGIBLE_WORKER
    └── NoEligibleInferenceWorker 503 NO_ELIGIBLE_INFERENCE_WORKER

Handlers only raise; `http` renders, once, as application/problem+json (RFC 9457).
"""

from __future__ import annotations

from typing import Any, ClassVar

MOST_POINTER = 1000
NAME_A_STEP = "Name one of the task's steps: GET /v1/tasks/{id}/steps shows them, and `interlock tasks steps`."


class Problem(Exception):
    """A refusal that a caller can act on.

    `detail` says what happened, `next` what the caller can do now, `extra` adds members to the problem object.
    """

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    title: ClassVar[str] = "Internal error"
    default_next: ClassVar[str] = "Try again; if it happens again, report the requestId."
    retry_after: ClassVar[int | None] = None

    def __init__(self, detail: str | None = None, *, next: str | None = None, **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.next = next or self.default_next
        self.extra = extra

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """The problem object of RFC 9457 with Interlock's members."""
        problem: dict[str, Any] = {
            "type": f"https://interlock.dev/problems/{self.code.lower().replace('_', '-')}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retryable,
            "next": self.next,
        }
        if request_id is not None:
            problem["requestId"] = request_id
        problem.update(self.extra)
        return problem


class InvalidJson(Problem):
    code, status, title = "INVALID_JSON", 400, "The body is not acceptable JSON"
    default_next = "Correct the JSON at the place named in errors and send it again."

    def __init__(self, detail: str, pointer: str = "") -> None:
        if len(pointer) > MOST_POINTER:  # keys may be as long as the body
            pointer = pointer[:MOST_POINTER] + "…"
        super().__init__(detail, errors=[{"pointer": pointer, "message": detail}])


class InvalidRequest(Problem):
    code, status, title = "INVALID_REQUEST", 400, "The request is not valid"
    default_next = "Correct the fields named in errors and send the request again."

    def __init__(
        self, detail: str, pointer: str = "", *, next: str | None = None, errors: list[dict[str, str]] | None = None
    ) -> None:
        super().__init__(detail, next=next, errors=errors or [{"pointer": pointer, "message": detail}])


class InvalidType(InvalidRequest):
    code, title = "INVALID_TYPE", "The task type is not valid"


class InvalidCursor(Problem):
    code, status, title = "INVALID_CURSOR", 400, "The cursor does not belong to this list"
    default_next = "Start again without a cursor, and keep filter and project the same from page to page."


class Unauthenticated(Problem):
    code, status, title = "UNAUTHENTICATED", 401, "No valid key was given"
    default_next = "Send `Authorization: Bearer il_…` with a key of this service that has not expired."


class KeyRevoked(Problem):
    code, status, title = "KEY_REVOKED", 401, "The key was revoked"
    default_next = "Ask an operator of the project for a new key."


class ScopeDenied(Problem):
    code, status, title = "SCOPE_DENIED", 403, "The key may not do this"
    default_next = "Use a key of the kind that is needed."


class NotFound(Problem):
    code, status, title = "NOT_FOUND", 404, "Not found"
    default_next = "Check the id, and that the key belongs to the project of the object."


class TaskTypeNotFound(NotFound):
    code, title = "TASK_TYPE_NOT_FOUND", "No worker ever registered this type"
    default_next = "Start a worker that handles this type and version, or submit without requireWorker."


class MethodNotAllowed(Problem):
    code, status, title = "METHOD_NOT_ALLOWED", 405, "The path exists, but not with this method"
    default_next = "Use one of the methods in the Allow header."


class StaleAttempt(Problem):
    code, status, title = "STALE_ATTEMPT", 409, "The attempt is no longer current"
    default_next = (
        "Stop reporting for this attempt, and do not take the refusal for success; the task's journal says who goes on."
    )


class EpochChanged(Problem):
    code, status, title = "EPOCH_CHANGED", 409, "The lease was given before the database was restored"
    default_next = "Set the record aside and let a person compare it with the task as it is now."


class IdempotencyConflict(Problem):
    code, status, title = "IDEMPOTENCY_CONFLICT", 409, "The idempotency key names another request"
    default_next = "Use a new key for a new request, or send the original request again unchanged."


class TaskFinished(Problem):
    code, status, title = "TASK_FINISHED", 409, "The task is settled"
    default_next = "Read the task; its result does not change any more."


class TaskNotFinished(Problem):
    code, status, title = "TASK_NOT_FINISHED", 409, "The task is not settled yet"
    default_next = "Wait for its end, or cancel it first."


class TaskNotUnknown(Problem):
    code, status, title = "TASK_NOT_UNKNOWN", 409, "The task is not waiting to be resolved from that attempt"
    default_next = "Read the task again and name the attempt whose outcome is unknown now."


class OutcomeUnknown(Problem):
    code, status, title = "OUTCOME_UNKNOWN", 409, "The outcome of the task is unknown"
    default_next = "Find out what happened outside, then resolve the task."


class WorkerIdConflict(Problem):
    code, status, title = "WORKER_ID_CONFLICT", 409, "A newer build is registered under this worker id"
    default_next = "Go on claiming unregistered, use another worker id, or register with replace."


class PayloadTooLarge(Problem):
    code, status, title = "PAYLOAD_TOO_LARGE", 413, "The payload is too large"
    default_next = "Send large bytes by reference, or split the call."


class UnsupportedMediaType(Problem):
    code, status, title = "UNSUPPORTED_MEDIA_TYPE", 415, "The content type or encoding is not supported"
    default_next = "Send application/json in UTF-8, uncompressed or gzip-coded."


class LimitExceeded(Problem):
    code, status, title = "LIMIT_EXCEEDED", 422, "A limit was reached"
    default_next = "Read the limits in GET /v1/config."


class RateLimited(Problem):
    code, status, title, retryable, retry_after = "RATE_LIMITED", 429, "Too many requests", True, 1
    default_next = "Wait for Retry-After seconds and send the request again."


class Internal(Problem):
    pass


class Unavailable(Problem):
    code, status, title, retryable, retry_after = "UNAVAILABLE", 503, "The service cannot answer right now", True, 1
    default_next = "Send the same request again after Retry-After seconds."


class NoEligibleWorker(Problem):
    code, status, title, retryable, retry_after = "NO_ELIGIBLE_WORKER", 503, "No online worker serves this type", True, 5
    default_next = "Start a worker for this type, version and pool, or submit without requireWorker to let the task wait."


class NoEligibleInferenceWorker(NoEligibleWorker):
    code = "NO_ELIGIBLE_INFERENCE_WORKER"
