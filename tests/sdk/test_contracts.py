"""Typed contracts: dataclasses and pydantic models on both sides, and what does not fit them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

import interlock
from interlock import NotValid, TaskContext, TaskContract
from sdk.live import Live


class Model(StrEnum):
    small = "small"
    large = "large"


@dataclass(frozen=True)
class Part:
    start: float
    speaker: str | None = None


@dataclass
class Clip:
    url: str
    model: Model = Model.small
    parts: list[Part] = field(default_factory=list)
    at: datetime | None = None
    size: tuple[int, int] | None = None
    labels: Mapping[str, Literal["a", "b"]] = field(default_factory=dict)
    extra: Any = None

    def __post_init__(self) -> None:
        if not self.url:
            raise ValueError("url is empty")


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    number: int
    placed_at: datetime = Field(alias="placedAt")
    customer: Part | None = None

    @field_validator("number")
    @classmethod
    def positive(cls, number: int) -> int:
        if number < 1:
            raise ValueError("a number is positive")
        return number


class Receipt(BaseModel):
    total: int


WHEN = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
CLIP = Clip("https://a/b", Model.large, [Part(1.5, "Ada"), Part(2)], WHEN, (640, 480), {"x": "a"}, {"any": [1]})


def test_a_dataclass_comes_back_as_it_was() -> None:
    contract = interlock.task("audio/transcribe", 1, input=Clip)
    wire = contract.write_input(CLIP)
    assert wire["at"] == "2026-05-04T03:02:01.000000Z"
    assert (wire["model"], wire["parts"][1], wire["size"]) == ("large", {"start": 2, "speaker": None}, [640, 480])
    assert contract.read_input(wire) == CLIP
    assert contract.read_input({"url": "u", "unknown": 1}) == Clip("u")
    assert contract.write_input({"url": "u"})["model"] == "small"  # type: ignore[arg-type]  # a dict that fits is taken


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ([], ""),
        ({}, "/url"),
        ({"url": 1}, "/url"),
        ({"url": ""}, ""),
        ({"url": "u", "model": "huge"}, "/model"),
        ({"url": "u", "parts": [{"start": 1}, {"start": "2"}]}, "/parts/1/start"),
        ({"url": "u", "parts": [{"start": True}]}, "/parts/0/start"),
        ({"url": "u", "parts": [{"start": 1, "speaker": 5}]}, "/parts/0/speaker"),
        ({"url": "u", "at": "yesterday"}, "/at"),
        ({"url": "u", "size": [1]}, "/size"),
        ({"url": "u", "size": [1, 2.5]}, "/size/1"),
        ({"url": "u", "labels": {"a/b": "c"}}, "/labels/a~1b"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(value: Any, pointer: str) -> None:
    with pytest.raises(NotValid) as refused:
        interlock.task("audio/transcribe", 1, input=Clip).read_input(value)
    assert refused.value.pointer == pointer


def test_a_pydantic_model_keeps_its_own_rules() -> None:
    contract = interlock.task("shop/order", 2, input=Order, output=Receipt)
    order = Order.model_validate({"number": 7, "placedAt": WHEN, "customer": Part(1)})
    wire = contract.write_input(order)
    assert wire["placedAt"] == "2026-05-04T03:02:01Z"
    assert contract.read_input(wire) == order
    with pytest.raises(NotValid, match="a number is positive") as refused:
        contract.read_input({"number": -4_711, "placedAt": "2026-05-04T03:02:01Z"})
    assert refused.value.pointer == "/number"
    assert "4711" not in str(refused.value), "what was sent is not told again"
    assert contract.schemas()["inputSchema"]["properties"]["number"] == {"title": "Number", "type": "integer"}
    assert contract.schemas()["resultSchema"]["title"] == "Receipt"


def test_a_contract_that_cannot_hold_is_refused_at_once() -> None:
    @dataclass
    class Odd:
        handle: object

    with pytest.raises(TypeError, match=r"input.handle"):
        interlock.task("a/b", 1, input=Odd)
    with pytest.raises(ValueError, match="group/name"):
        interlock.task("a/b@1")
    with pytest.raises(ValueError, match="from 1"):
        interlock.task("a/b", 0)
    with pytest.raises(TypeError, match="schema version"):
        interlock.TaskProducer("http://127.0.0.1:9", "k").submit(interlock.task("a/b"), 1, {})


def test_typed_tasks_go_through_the_service(live: Live) -> None:
    contract: TaskContract[Clip, Receipt] = interlock.task(live.type, 1, input=Clip, output=Receipt)
    worker = live.worker()
    got: list[Clip] = []

    @worker.handle(contract, effect_safety="pure")
    def run(clip: Clip, ctx: TaskContext) -> Receipt:
        got.append(clip)
        return Receipt(total=len(clip.parts))

    worker.start()
    handle = live.producer.submit(contract, CLIP, tags={"order": "17"})
    assert handle.result(timeout=20) == Receipt(total=2)
    assert got == [CLIP]
    many = live.producer.submit_many([contract(Clip(f"u{n}", parts=[Part(0)] * n), priority=n) for n in range(5)])
    assert [each.result(timeout=20) for each in many] == [Receipt(total=n) for n in range(5)]
    refused = live.producer.submit(live.type, 1, {"url": 5}).wait(timeout=20)
    assert refused.failure is not None
    assert (refused.status, refused.failure.code, refused.failure.details) == ("failed", "INPUT_NOT_VALID", {"pointer": "/url"})
    assert len(got) == 6


def test_a_typed_async_handler_and_a_result_that_does_not_fit(live: Live) -> None:
    contract = interlock.task(live.type, 1, input=Order, output=Receipt)
    worker = live.worker()

    @worker.handle(contract, effect_safety="pure", retry=interlock.Retry(on=(ValueError,)))
    async def run(order: Order, ctx: TaskContext) -> Any:
        assert isinstance(order, Order)
        return {"total": "many"} if order.number == 2 else {"total": 5}

    worker.start()
    now = datetime.now(UTC)
    good = live.producer.submit(contract, Order(number=1, placedAt=now))
    assert good.result(timeout=20).total == 5
    odd = live.producer.submit(contract, Order(number=2, placedAt=now)).wait(timeout=20)
    assert odd.failure is not None
    assert (odd.status, odd.failure.code) == ("failed", "RESULT_NOT_STORABLE")
    refused = live.producer.submit(live.type, 1, {"number": 0}).wait(timeout=20)
    assert refused.failure is not None
    assert refused.failure.code == "INPUT_NOT_VALID", "and is not retried, whatever the handler's policy names"


def test_the_package_works_without_pydantic() -> None:
    program = (
        "import sys; sys.modules['pydantic'] = None\nimport interlock, dataclasses\n"
        "@dataclasses.dataclass\nclass A:\n    x: int\n"
        "print(interlock.task('a/b', input=A).read_input({'x': 1}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "A(x=1)", done.stderr


def test_the_name_task_is_the_function() -> None:
    import interlock.tasks

    assert callable(interlock.task)
