"""Reading an HTTP answer: a value, or the error that it is. Pure, and foreseeing answers that are not the service's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from interlock.backoff import read_retry_after
from interlock.errors import ApiError, ConfigurationError
from interlock.json_text import decode

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may pass by themselves, where no problem document says otherwise."""

MOST_FAULTS = 10
"""How often a worker sends again what ended in a fault of the service."""


LONGEST_SECONDS = 1e9
"""Thirty years: no duration of the protocol comes near."""


def may_pass(error: ApiError, tries: int) -> bool:
    """Whether a worker is to send again what was answered so, after so many tries.

    What the service says, but for a fault of its own (a 500): that is no refusal. The work may have been taken, and a repeat,
    which changes nothing then, finds that out. So it is repeated some times before it counts as refused for good.
    """
    return error.retryable or (error.status >= 500 and tries < MOST_FAULTS)


def read_answer(status: int, headers: Mapping[str, str], body: bytes, url: str) -> dict[str, Any]:
    """The JSON object of a success; raises ApiError for anything else and ConfigurationError for a redirect."""
    if 300 <= status < 400:
        raise refuse_redirect(status, headers.get("location"), url)
    if 200 <= status < 300:
        try:
            value = decode(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        # A captive portal, a proxy's page or an answer cut short: not the service's, which always says something.
        raise foreign_answer(status, headers, retryable=True)
    raise read_problem(status, headers, body)


def read_problem(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error told by a refused request, whoever wrote it."""
    try:
        problem = decode(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return foreign_answer(status, headers, retryable=status in PASSING_STATUSES)
    return problem_error(problem, status, headers)


def problem_error(problem: Mapping[str, Any], status: int = 0, headers: Mapping[str, str] | None = None) -> ApiError:
    """The error of a problem document: of a whole answer, or of one item of a batch."""
    headers = headers or {}
    status = status or as_int(problem.get("status"))
    retryable = problem.get("retryable")
    if not isinstance(retryable, bool):
        retryable = status in PASSING_STATUSES
    errors = problem.get("errors")
    return ApiError(
        code=str(problem.get("code") or f"HTTP_{status}"),
        status=status,
        title=as_text(problem.get("title")),
        detail=as_text(problem.get("detail")),
        retryable=retryable,
        next=as_text(problem.get("next")),
        request_id=as_text(problem.get("requestId")) or headers.get("x-request-id", ""),
        errors=[item for item in errors if isinstance(item, dict)] if isinstance(errors, list) else (),
        retry_after=read_retry_after(headers.get("retry-after")),
        problem=problem,
    )


def foreign_answer(status: int, headers: Mapping[str, str], *, retryable: bool) -> ApiError:
    """The error for an answer that the service did not write. Its text is left out: it may quote our request."""
    kind = headers.get("content-type", "").split(";")[0].strip()[:80] or "no content type"
    return ApiError(
        code=f"HTTP_{status}",
        status=status,
        detail=f"the answer does not come from an Interlock service ({kind})",
        retryable=retryable,
        next="" if retryable else "Check the service URL and what stands between it and here.",
        request_id=headers.get("x-request-id", ""),
        retry_after=read_retry_after(headers.get("retry-after")),
    )


def read_verdicts(answer: Mapping[str, Any], name: str, attempt_ids: Sequence[str]) -> list[Mapping[str, Any] | None]:
    """What an answer says of each attempt that was told of, in order. None where it says nothing, or speaks of another one."""
    told = answer.get(name)
    told = told if isinstance(told, list) else []
    found: list[Mapping[str, Any] | None] = []
    for place, attempt_id in enumerate(attempt_ids):
        verdict = told[place] if place < len(told) else None
        # A refusal of what could not be read names nobody.
        named = verdict.get("attemptId", attempt_id if "error" in verdict else None) if isinstance(verdict, Mapping) else None
        found.append(verdict if named == attempt_id else None)
    return found


def as_seconds(value: Any, otherwise: float) -> float:
    """A duration of an answer; `otherwise` for what is none, or lasts longer than anything does."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LONGEST_SECONDS:
        return otherwise
    return float(value)


def refuse_redirect(status: int, location: str | None, url: str) -> ConfigurationError:
    """The error for a redirect: following it would hand the key to another host, or turn a POST into a GET."""
    try:
        target = urlsplit(urljoin(url, location or ""))
        port = f":{target.port}" if target.port else ""
        origin = f"{target.scheme}://{target.hostname}{port}" if target.hostname else ""
    except ValueError:
        origin = ""
    asked = urlsplit(url)
    where = f" to {origin}" if origin else ""
    advice = f"set the service URL (INTERLOCK_URL) to {origin}" if origin else "correct the service URL (INTERLOCK_URL)"
    return ConfigurationError(
        f"{asked.scheme}://{asked.netloc} answers with a redirect ({status}){where}, which is not followed "
        f"so that the key reaches no other host; {advice} if that is your service"
    )


def as_text(value: Any) -> str:
    """A text field of a document that we did not write."""
    return value if isinstance(value, str) else ""


def as_int(value: Any) -> int:
    """A number field of a document that we did not write."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
