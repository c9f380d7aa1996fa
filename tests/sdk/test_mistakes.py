"""What a newcomer gets wrong first is said at once, in words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock import ApiError, Submission, TaskWorker
from interlock.tasks import Failure
from sdk.conftest import Answer, ScriptedServer


def no_context(inp: Any) -> None: ...


def too_many(inp: Any, ctx: Any, more: Any) -> None: ...


@pytest.mark.parametrize("fn", [no_context, too_many, lambda: None])
def test_a_function_that_cannot_be_called_as_a_handler_is_refused_when_it_is_declared(fn: Any) -> None:
    worker = TaskWorker(worker_id="w", spool=None)
    with pytest.raises(TypeError, match=r"is called with two arguments, \(input, ctx\)"):
        worker.handle("demo/hello", effect_safety="pure")(fn)
    with pytest.raises(TypeError, match=r"the reconcile hook .* is called with two arguments"):
        worker.handle("demo/hello", effect_safety="non-idempotent", reconcile=fn)(lambda inp, ctx: None)


@pytest.mark.parametrize("fn", [lambda inp, ctx: None, lambda *given: None, lambda inp, ctx, more=1: None, max, dict.get])
def test_whatever_can_be_called_so_is_taken(fn: Any) -> None:
    TaskWorker(worker_id="w", spool=None).handle("demo/hello", effect_safety="pure")(fn)


@pytest.mark.parametrize("version", [{"name": "Ada"}, "1", 1.0, True, None])
def test_an_input_in_the_place_of_the_version_is_said_before_anything_is_sent(version: Any) -> None:
    with pytest.raises(TypeError, match=r"the schema version is a whole number, got .*'demo/hello', 1, input"):
        Submission("demo/hello", version).encode()


def test_a_worker_that_is_refused_raises_the_callers_lines_and_not_those_of_a_thread(
    scripted: ScriptedServer, tmp_path: Path
) -> None:
    refusal = {
        "code": "UNAUTHENTICATED",
        "status": 401,
        "title": "No",
        "detail": "no key",
        "retryable": False,
        "next": "Another.",
    }
    scripted.answer("PUT", "/v1/workers/w", Answer(401, refusal))
    worker = TaskWorker(worker_id="w", url=scripted.url, key="il_w_1_2", spool=tmp_path / "spool")
    worker.handle("demo/hello", effect_safety="pure")(lambda inp, ctx: None)
    with pytest.raises(ApiError, match=r"UNAUTHENTICATED \(401\): no key\. Another\.") as refused:
        worker.start()
    assert [frame.name for frame in refused.traceback][1:] == ["start", "check"]


def test_a_failure_says_what_the_last_attempt_failed_of() -> None:
    last = {"code": "ConnectionError", "message": "no route"}
    failure = Failure.read({"code": "ATTEMPTS_EXHAUSTED", "message": "attempt 2 of 2 failed", "details": {"last": last}})
    assert str(failure) == "ATTEMPTS_EXHAUSTED: attempt 2 of 2 failed; the last one of ConnectionError: no route"
    assert str(Failure("NO_ADDRESS", "the moon", {"last": "x"})) == "NO_ADDRESS: the moon"


def test_a_refusal_reads_as_sentences() -> None:
    refusal = ApiError(code="SCOPE_DENIED", status=403, detail="this call needs another key", next="Use it.", request_id="r1")
    assert str(refusal) == "SCOPE_DENIED (403): this call needs another key. Use it. (request r1)"
    errors = [{"pointer": "/a", "message": "must be a number"}]
    assert str(ApiError(code="X", status=400, detail="/a must be a number", errors=errors, next="Y.")) == (
        "X (400): /a must be a number [/a]. Y."
    )
