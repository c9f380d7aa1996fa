"""The parts of the SDK that need neither a service nor a thread: back-off, JSON, outcomes, views, declarations."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

import interlock
from interlock import Cancelled, NotJson, Retry, Retryable, Submission, Task, TaskWorker, UnknownOutcome
from interlock.attempt import Attempt
from interlock.backoff import Backoff, growing_delay, read_retry_after
from interlock.errors import ConfigurationError
from interlock.handler import Handler
from interlock.json_text import clean_text, decode, encode
from interlock.notes import LINES, Notes
from interlock.outcome import Outcome, Release, conclude_error, conclude_return
from interlock.stream import Frame, read_frames, reopening
from interlock.submission import BATCH_BYTES, pack
from interlock.tasks import read_time, write_time
from sdk.isolated_handlers import Hostile


def make_attempt(**options: Any) -> Attempt:
    fields: dict[str, Any] = {"effect_safety": "idempotent", **options}
    handler = Handler("demo/x", 1, lambda inp, ctx: None, **fields)
    claim = {"taskId": "t", "attemptId": "a", "fence": 1, "leaseToken": "tok", "leaseSeconds": 60}
    attempt = Attempt(claim, handler, 0.0, 0.0, "")
    attempt.started = True
    return attempt


def fields_of(ended: Outcome | Release) -> dict[str, Any]:
    assert isinstance(ended, Outcome)
    found: dict[str, Any] = json.loads(ended.body)
    assert {found.pop(name) for name in ("taskId", "attemptId", "leaseToken")} == {"t", "a", "tok"}
    assert found.pop("fence") == 1
    return found


def test_the_public_surface_is_sorted_and_whole() -> None:
    assert interlock.__all__ == sorted(interlock.__all__)
    assert all(hasattr(interlock, name) for name in interlock.__all__)
    assert all(getattr(interlock, name).__doc__ for name in interlock.__all__ if name != "__version__")


def test_every_file_of_the_sdk_is_short() -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in Path(interlock.__file__).parent.glob("*.py")}
    assert {name: size for name, size in sizes.items() if size > 400} == {}


@pytest.mark.parametrize("tries", [0, 1, 40, 64, 1100, 10**9])
def test_b17_the_delay_grows_within_its_bounds_at_any_number_of_tries(tries: int) -> None:
    backoff = Backoff(first=1, longest=3600, factor=2)
    backoff.tries = tries
    delays = []
    for _ in range(50):
        delays.append(backoff.next())
        backoff.tries = tries
    assert all(0 < delay <= 3600 for delay in delays)
    assert len(set(delays)) > 1
    assert growing_delay(tries, 1, 3600) <= 3600


def test_b54_a_thousand_that_lost_their_streams_at_one_instant_come_back_spread() -> None:
    pauses = [reopening() for _ in range(1000)]
    for _ in range(3):  # it fails for all of them, three times
        tenths = Counter(int(backoff.next() * 10) for backoff in pauses)
        assert max(tenths.values()) < 100, "more than a tenth of them within a tenth of a second"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("3", 3), ("0", 0), ("1e9", None), ("-5", None), ("nan", None), ("inf", None), ("", None), ("٣", None),
        ("9" * 5000, 60), ("Wed, 01 Jan 2025 00:00:10 GMT", 10), ("Wed, 01 Jan 2020 00:00:00 GMT", 0),
        ("Wed, 01 Jan 9999 00:00:00 GMT", 60), ("Wed, 99 Foo 2025 99:99:99 GMT", None), ("Wed, 01 Jan 2025 00:00:10 -0000", 10),
    ],
)  # fmt: skip
def test_b60_retry_after_is_read_or_ignored(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, datetime(2025, 1, 1, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {"b": math.nan}]}, "/a/1/b"), ({"a": math.inf}, "/a"), ({"a/b": {"~": object()}}, "/a~1b/~0"), ([b"x"], "/0"),
        ({"a": "\ud800"}, "/a"), ({"\udfff": 1}, ""), ({(1, 2): 1}, ""), ([1, 10**5000], "/1"),
    ],
)  # fmt: skip
def test_b26_what_json_cannot_carry_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(NotJson) as caught:
        encode(value, "the input")
    assert caught.value.pointer == place
    assert (place or "/") in str(caught.value)


def test_b26_values_that_hold_themselves_or_are_too_deep_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson, match="contains itself"):
        encode(endless)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotJson, match="deeper than 64"):
        encode(deep)
    while deep is not None:  # taken apart by hand: the interpreter's own way is as deep as the list
        deep = deep[0]


def test_integers_and_text_survive() -> None:
    value = {"id": 9007199254740993, "big": 10**400, "text": "\x00 😀 \uffff é é", "one": 1.0, "zero": [None, "", 0, False, -0.0]}
    assert decode(encode(value)) == value
    assert decode(encode(value))["id"] == 2**53 + 1


def test_b19_text_is_cleaned_cut_and_marked() -> None:
    assert clean_text("a\x00b\udcffc", 100) == "a\ufffdb\ufffdc"
    cut = clean_text("é" * 20_000, 16_384)
    assert len(cut.encode()) <= 16_384
    assert cut.endswith("é…[truncated]")


class Declined(Exception):
    code = "CARD_DECLINED"
    details: ClassVar[dict[str, str]] = {"card": "…42"}


class Stubborn(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "outcome", "fields"),
    [
        (ValueError("bad"), "failed", {"error": {"code": "ValueError", "message": "bad"}}),
        (Declined("no"), "failed", {"error": {"code": "CARD_DECLINED", "message": "no", "details": {"card": "…42"}}}),
        (SystemExit(3), "failed", {"error": {"code": "SystemExit", "message": "3"}}),
        (Stubborn(), "failed", {"error": {"code": "Stubborn", "message": "(its text cannot be read: RuntimeError)"}}),
        (
            Retryable("later", after=5),
            "retryable",
            {"error": {"code": "RETRYABLE", "message": "later"}, "retryAfterSeconds": 5.0},
        ),
        (
            Retryable(after=1e12),
            "retryable",
            {"error": {"code": "RETRYABLE", "message": "Retryable"}, "retryAfterSeconds": 2592000.0},
        ),
        (Retryable("x", after=math.nan, code="BUSY"), "retryable", {"error": {"code": "BUSY", "message": "x"}}),
        (UnknownOutcome("sent, no answer"), "unknown", {"error": {"code": "UNKNOWN_OUTCOME", "message": "sent, no answer"}}),
        (Cancelled("enough"), "cancelled", {"error": {"code": "CANCELLED", "message": "enough"}}),
        (
            OSError(2, "gone", "a\udcff"),
            "failed",
            {"error": {"code": "FileNotFoundError", "message": "[Errno 2] gone: 'a\\udcff'"}},
        ),
    ],
)
def test_what_a_handler_raises_is_its_outcome(error: BaseException, outcome: str, fields: dict[str, Any]) -> None:
    assert fields_of(conclude_error(make_attempt(), error)) == {"outcome": outcome, **fields}


def test_exceptions_named_by_the_policy_are_retryable() -> None:
    attempt = make_attempt(retry=Retry(on=(ConnectionError,)))
    assert fields_of(conclude_error(attempt, ConnectionResetError("x")))["outcome"] == "retryable"
    assert fields_of(conclude_error(attempt, ValueError("x")))["outcome"] == "failed"


@pytest.mark.parametrize(
    ("reason", "safety", "error", "outcome"),
    [
        ("cancel", "pure", asyncio.CancelledError(), "cancelled"),
        ("timeout", "idempotent", Cancelled(), "cancelled"),
        ("cancel", "non-idempotent", asyncio.CancelledError(), "unknown"),
        ("timeout", "non-idempotent", asyncio.CancelledError(), "unknown"),
        ("cancel", "non-idempotent", Cancelled("nothing sent"), "cancelled"),
        ("lease-doubt", "non-idempotent", asyncio.CancelledError(), "unknown"),
        ("lease-doubt", "idempotent", asyncio.CancelledError(), None),
        ("drain", "pure", asyncio.CancelledError(), None),
        ("drain", "non-idempotent", asyncio.CancelledError(), None),
        ("drain", "pure", ValueError("of its own"), "failed"),
        ("cancel", "pure", Retryable(), "retryable"),
        ("drain", "non-idempotent", UnknownOutcome(), "unknown"),
    ],
)
def test_a_stopped_handler_is_told_as_it_was(reason: Any, safety: Any, error: BaseException, outcome: str | None) -> None:
    attempt = make_attempt(effect_safety=safety)
    assert attempt.stop(reason)
    ended = conclude_error(attempt, error)
    assert (ended.status if isinstance(ended, Outcome) else None) == outcome
    if isinstance(ended, Release):
        assert json.loads(ended.encode())["started"] is True


def test_a_handler_that_had_not_started_is_never_unknown() -> None:
    attempt = make_attempt(effect_safety="non-idempotent")
    attempt.started = False
    attempt.stop("cancel")
    assert fields_of(conclude_error(attempt, asyncio.CancelledError()))["outcome"] == "cancelled"


def test_b19_b26_results_that_cannot_be_stored_fail_the_task_here() -> None:
    assert fields_of(conclude_return(make_attempt(), "x" * 98, 100))["outcome"] == "succeeded"
    told = fields_of(conclude_return(make_attempt(), "x" * 99, 100))
    assert (told["outcome"], told["error"]["code"]) == ("failed", "RESULT_TOO_LARGE")
    told = fields_of(conclude_return(make_attempt(), {"rows": [1, math.nan]}))
    assert told["error"] == {
        "code": "RESULT_NOT_STORABLE",
        "message": "the result is not JSON: at /rows/1: nan is not a JSON number",
    }


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_b26_a_result_that_raises_when_it_is_read_is_an_outcome_too(error: type[BaseException]) -> None:
    for value in (Hostile(error), [{"deep": Hostile(error)}]):
        ended = conclude_return(make_attempt(), value)
        told = fields_of(ended)
        assert (told["outcome"], told["error"]["code"]) == ("failed", "RESULT_NOT_STORABLE")
        assert told["error"]["message"] == f"the result cannot be read: {error.__name__}: no luck"
        assert error.__name__ in (ended.reason or "")
    described = fields_of(conclude_error(make_attempt(), Cancelled("x", details={"y": Hostile(error)})))
    assert described["error"] == {"code": "CANCELLED", "message": "x", "details": {"omitted": "no luck"}}


def test_an_exception_that_cannot_be_looked_at_is_an_outcome_too() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise SystemExit

        @property
        def code(self) -> str:
            raise KeyboardInterrupt

    told = fields_of(conclude_error(make_attempt(), Unreadable()))
    assert (told["outcome"], told["error"]["code"]) == ("failed", "Unreadable")


@pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
def test_empty_results_are_results(value: Any) -> None:
    told = fields_of(conclude_return(make_attempt(), value))
    assert told == {"outcome": "succeeded", "result": value}


def test_batches_fit_the_service() -> None:
    bodies = list(pack(Submission("a/b", 1, {"n": number}) for number in range(2500)))
    assert [count for count, _ in bodies] == [1000, 1000, 500]
    assert [item["input"]["n"] for _, body in bodies for item in json.loads(body)["tasks"]] == list(range(2500))
    large = list(pack(Submission("a/b", 1, "x" * 250_000) for _ in range(50)))
    assert [count for count, _ in large] == [20, 20, 10]
    assert all(len(body) <= BATCH_BYTES for _, body in large)
    with pytest.raises(NotJson) as caught:
        list(pack([Submission("a/b", 1, 1), Submission("a/b", 1, [math.nan])]))
    assert caught.value.pointer == "/tasks/1/input/0"


def test_a_submission_names_only_what_was_given() -> None:
    wire = Submission("a/b", 2, None).to_wire()
    assert wire.pop("idempotencyKey").startswith("auto-")
    assert wire == {"type": "a/b", "schemaVersion": 2, "input": None}
    full = Submission(
        "a/b", 1, {}, "k", {"t": "v"}, 5, None, 3, "gpu", Retry(3), 60, 30, 10, ("key", 2), "online", "00-ab-cd-01"
    ).to_wire()
    assert full["retry"] == {
        "maxAttempts": 3,
        "initialDelaySeconds": 1.0,
        "multiplier": 2.0,
        "maxDelaySeconds": 300.0,
        "jitter": 0.2,
    }
    assert (full["concurrency"], full["trace"], full["delaySeconds"]) == (
        {"key": "key", "limit": 2},
        {"traceparent": "00-ab-cd-01"},
        5,
    )


def test_times_are_read_and_written_in_utc() -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    assert read_time("2026-01-31T12:00:00.123456Z") == at == read_time("2026-01-31T13:00:00.123456+01:00")
    assert read_time("2026-01-31T12:00:00.1Z") == at.replace(microsecond=100_000)
    assert [read_time(value) for value in (None, 5, "soon")] == [None, None, None]
    assert write_time(at) == "2026-01-31T12:00:00.123456Z"
    with pytest.raises(ValueError, match="needs a zone"):
        write_time(datetime(2026, 1, 1))  # noqa: DTZ001 (that it has none is the point)


def test_a_view_with_unknown_and_missing_fields_is_read() -> None:
    view = {"id": "t", "type": "a/b", "schemaVersion": 1, "status": "failed", "settled": True, "soon": 1,
            "failure": {"code": "X", "message": "m", "extra": 1}, "progress": {"percent": 50}}  # fmt: skip
    task = Task.read(view)
    assert task.failure is not None
    assert (task.failure.code, task.raw["soon"], task.ended, task.tags) == ("X", 1, True, {})
    assert Task.read({"status": "outcome-unknown"}).ended
    assert not Task.read({"status": "running"}).ended


@pytest.mark.parametrize(
    ("type_name", "version", "options"),
    [
        ("audio/transcribe@1", 1, {}), ("audio", 1, {}), ("a/b", 0, {}), ("a/b", True, {}),
        ("a/b", 1, {"effect_safety": "safe"}), ("a/b", 1, {"max_concurrent": 0}), ("a/b", 1, {"on_lease_doubt": "pray"}),
    ],
)  # fmt: skip
def test_a_handler_that_cannot_be_served_is_refused_where_it_is_declared(
    type_name: str, version: Any, options: dict[str, Any]
) -> None:
    worker = TaskWorker(worker_id="w")
    with pytest.raises(ValueError):  # noqa: PT011 (the messages are for people)
        worker.handle(type_name, version, **{"effect_safety": "pure", **options})(lambda inp, ctx: None)


def test_a_type_has_one_handler_and_a_worker_has_some() -> None:
    worker = TaskWorker(worker_id="w")
    worker.handle("a/b", 1, effect_safety="pure")(lambda inp, ctx: 1)
    worker.handle("a/b", 2, effect_safety="pure")(lambda inp, ctx: 2)
    with pytest.raises(ValueError, match="has a handler already"):
        worker.handle("a/b", 1, effect_safety="pure")(lambda inp, ctx: 3)
    with pytest.raises(ConfigurationError, match="no handler"):
        TaskWorker(worker_id="w").run()
    with pytest.raises(ValueError, match="worker_id"):
        TaskWorker(worker_id="../x")


def test_frames_are_read_from_lines() -> None:
    lines = [
        ": hello",
        "",
        "event: ready",
        "",
        "event: wake",
        'data: {"types":',
        'data:  ["a/b@1"]}',
        "",
        "data: nonsense",
        "",
        "event: x",
    ]
    assert list(read_frames(lines)) == [Frame("ready", {}), Frame("wake", {"types": ["a/b@1"]}), Frame("message", {})]


def test_b41_notes_are_batched_bounded_and_sent_once() -> None:
    notes = Notes()
    for number in range(LINES + 5000):
        notes.add_line("info", f"line {number}", {"bad": object()} if number == 0 else None)
        notes.set_progress(number, None)
    seen: list[dict[str, Any]] = []
    while (taken := notes.take()) is not None:
        sent = json.loads(b"{" + taken[0][1:] + b"}")
        assert len(taken[0]) < 600_000
        seen += sent.get("logs", [])
        assert notes.take() == taken  # not settled: told again
        notes.settle(taken[1])
    assert [line["seq"] for line in seen] == list(range(1, LINES + 1))
    assert "truncated" in seen[-1]["message"]
    assert not notes.waiting
    notes.set_progress(math.nan, None)
    notes.set_progress(250, "done")
    taken = notes.take()
    assert taken is not None
    assert json.loads(b"{" + taken[0][1:] + b"}") == {"progress": {"percent": 100, "message": "done"}}
