"""Structs and models: the same rules in the same words, whoever reads a body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock_core.errors import InvalidRequest, InvalidType
from interlock_core.reports import Report
from interlock_core.wire.children import ChildSubmit
from interlock_core.wire.claim import Claim, Handler
from interlock_core.wire.registration import Register, RegisteredHandler
from interlock_core.wire.reports import Completion, Giveback, Ids, StepReport, Wait

ID = "019a0000-0000-7000-8000-000000000000"
IDS = {"taskId": ID, "attemptId": ID, "fence": 1, "leaseToken": "1.secret"}
HANDLER = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}
CLAIM = {"workerId": "w", "instanceId": "i", "claimId": "c", "slots": 1, "handlers": [HANDLER]}
CHILD = {**IDS, "name": "child", "type": "demo/hello", "schemaVersion": 1, "input": None}
REGISTER = {"instanceId": "i", "handlers": []}

#: Values at the edges of all rules, and those that other languages' JSON libraries make by mistake.
EDGES: list[Any] = [
    *(None, True, False, 0, 1, -1, 100, 10_000, 10_001, 2_147_483_647, 2_147_483_648, 10**30),
    *(0.5, 1.0, 1e-7, 1e-6, 3.2e8, float("inf"), float("nan"), [], [1], {}, {"a": 1}),
    *("", " ", "a", "a\n", "a\x00", "\x85", "\u2028", " a ", "x" * 255, "x" * 256, "é" * 255, "w-1", "w-1\n", "-w"),
    *(
        "demo/hello",
        "demo/hello\n",
        "demo",
        "demo/hello@1",
        "a/b/c",
        "pure",
        "idempotent",
        "non-idempotent",
        "Pure",
        ID,
        ID + "0",
        ID.upper(),
        ID.replace("-", ""),
        "{" + ID + "}",
        "0x" + ID[2:],
        ID.replace("-", "") + "----",
        ID[:-1] + "\n",
    ),
]


def reads(reader: Any, value: dict[str, Any]) -> str | None:
    """None where `value` is read, or else the place of the first thing that is wrong with it."""
    try:
        reader.read(value)
    except InvalidRequest as refusal:
        json.dumps(refusal.body())
        return str(refusal.extra["errors"][0]["pointer"])
    return None


@pytest.mark.parametrize("value", EDGES, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize(
    ("struct", "model", "names"),
    [
        ((Handler, HANDLER), (RegisteredHandler, HANDLER), (*HANDLER, "slots", "reconciles")),
        ((Ids, IDS), (ChildSubmit, CHILD), tuple(IDS)),
        ((StepReport, {**IDS, "name": "s", "status": "started"}), (ChildSubmit, CHILD), ("name",)),
        ((Claim, CLAIM), (Register, REGISTER), ("pool", "instanceId")),
    ],
    ids=["handler", "ids", "name", "pool"],
)
def test_a_struct_takes_what_a_model_takes(
    struct: tuple[Any, dict[str, Any]], model: tuple[Any, dict[str, Any]], names: tuple[str, ...], value: Any
) -> None:
    for name in names:
        refused = [reads(reader, {**body, name: value}) for reader, body in (struct, model)]
        assert refused[0] == refused[1], name


@given(st.text(max_size=8))
def test_names_of_any_text_are_taken_by_both_or_by_none(text: str) -> None:
    assert reads(StepReport, {**IDS, "name": text, "status": "started"}) == reads(ChildSubmit, CHILD | {"name": text})


REFUSED: list[tuple[type[Report], dict[str, Any], str, str]] = [
    (
        Completion,
        {"outcome": "perhaps"},
        "/outcome",
        "must be one of 'succeeded', 'failed', 'retryable', 'unknown', 'suspended', ",
    ),
    (Completion, {"outcome": 1}, "/outcome", "must be one of 'succeeded', 'failed', 'retryable', 'unknown', 'suspended', "),
    (Completion, {"outcome": "failed", "fence": "1"}, "/fence", "must be an integer, not a string"),
    (Completion, {"outcome": "failed", "fence": 0}, "/fence", "must be at least 1"),
    (Completion, {"outcome": "failed", "taskId": "x"}, "/taskId", "must be an id such as 019a"),
    (Completion, {"outcome": "failed", "leaseToken": ""}, "/leaseToken", "must have at least 1 characters"),
    (Completion, {"outcome": "failed", "step": "\ud800"}, "/step", "must not be blank"),
    (Completion, {"outcome": "\ud800"}, "/outcome", "must be one of 'succeeded', "),
    (
        Completion,
        {"outcome": "suspended", "wait": {"name": "w", "afterSeconds": "\ud800"}},
        "/wait/afterSeconds",
        "must be a number",
    ),
    (Completion, {"outcome": "suspended", "wait": {"name": "w", "\ud800": 1, "until": 1}}, "/wait/until", "must be a string"),
    (Completion, {"outcome": "failed", "fence": "x", "error": {str(n): n for n in range(301)}}, "/fence", "must be an integer"),
    (Completion, {"outcome": "failed", "taskId": ID.replace("-", "")}, "/taskId", "must be an id such as 019a"),
    (Completion, {"outcome": "failed", "retryAfterSeconds": float("inf")}, "/retryAfterSeconds", "must be a finite number"),
    (Completion, {"outcome": "failed", "retryAfterSeconds": 10**400}, "/retryAfterSeconds", "is out of range"),
    (Completion, {"outcome": "suspended"}, "", "goes with `wait`"),
    (Completion, {"outcome": "suspended", "wait": {"name": "w"}}, "/wait", "names nothing to wait for"),
    (Completion, {"outcome": "suspended", "wait": {"afterSeconds": 1}}, "/wait/name", "is required"),
    (Completion, {"outcome": "suspended", "wait": {"name": "w", "afterSeconds": 1e-9}}, "/wait/afterSeconds", "must be 0 or at"),
    (Completion, {"outcome": "suspended", "wait": {"name": "w", "until": "soon"}}, "/wait/until", "must be an RFC 3339 instant"),
    (
        Completion,
        {"outcome": "suspended", "wait": {"name": "w", "children": ["a", ""]}},
        "/wait/children/1",
        "must have at least 1",
    ),
    (Giveback, {"started": 1}, "/started", "must be true or false, not an integer"),
    (Giveback, {str(n): n for n in range(301)}, "", "has 305 fields"),
]


@pytest.mark.parametrize(("model", "change", "place", "message"), REFUSED)
def test_what_is_wrong_is_told_where_it_stands(model: type[Report], change: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model.read({**IDS, **change}, "/items/3")
    (error,) = refused.value.extra["errors"]
    assert error["pointer"] == "/items/3" + place
    assert error["message"].startswith(message)


def test_every_broken_field_of_a_body_is_told() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Claim.read(
            {"workerId": "a b", "slots": 0, "handlers": [HANDLER, {**HANDLER, "effectSafety": "maybe", "slots": 0}, 5, {}]}
        )
    assert [error["pointer"] for error in refused.value.extra["errors"]] == [
        "/workerId",
        "/instanceId",
        "/claimId",
        "/slots",
        "/handlers/1/effectSafety",
        "/handlers/1/slots",
        "/handlers/2",
        "/handlers/3/type",
        "/handlers/3/schemaVersion",
        "/handlers/3/effectSafety",
    ]


def test_no_more_is_told_of_a_body_than_can_be_read() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Wait.read({"name": "w", "children": ["a", *[""] * 999]})
    assert len(refused.value.extra["errors"]) == 50
    with pytest.raises(InvalidRequest) as refused:
        Wait.read({"name": "w", "children": [""] * 1001})
    assert [error["message"] for error in refused.value.extra["errors"]] == ["must have at most 1000 elements"]


@given(st.sampled_from([(Claim, CLAIM), (Completion, {**IDS, "outcome": "failed"}), (Ids, IDS)]), st.text(st.characters()))
def test_a_field_that_nobody_knows_is_ignored_whatever_its_name_is(read: tuple[Any, dict[str, Any]], name: str) -> None:
    struct, body = read
    for key in (name, f"{name}\ud800"):
        assert struct.read({key: 1, **body}) == struct.read(body)


def test_what_is_no_text_at_all_is_told_where_it_stands_in_an_array() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Claim.read({**CLAIM, "handlers": [HANDLER, {**HANDLER, "effectSafety": "\ud800"}, HANDLER, {**HANDLER, "slots": 0}]})
    assert [error["pointer"] for error in refused.value.extra["errors"]] == ["/handlers/1/effectSafety", "/handlers/3/slots"]


def test_a_type_with_its_version_in_it_is_told_how_to_be_sent() -> None:
    with pytest.raises(InvalidType) as refused:
        Claim.read({**CLAIM, "handlers": [{**HANDLER, "type": "demo/hello@2"}]})
    assert refused.value.next == 'Send "type": "demo/hello" and "schemaVersion": 2 as two fields.'


def test_a_wait_is_stored_as_it_was_said_and_its_instant_in_utc() -> None:
    wait = Wait.read({"name": "w", "until": "2026-01-31T13:00:00.5+01:00", "signal": "go", "children": ["a"], "later": 1})
    assert wait.said() == {"name": "w", "until": "2026-01-31T12:00:00.500000Z", "signal": "go", "children": ["a"]}
    assert Wait.read({"name": "w", "afterSeconds": 2}).said() == {"name": "w", "afterSeconds": 2.0}


def test_what_is_read_leniently_is_kept_as_it_came() -> None:
    given: dict[str, Any] = {"code": "\ud800", "details": [10**400, float("nan")]}
    assert Completion.read({**IDS, "outcome": "failed", "error": given}).error is given
