"""The rules of single fields for pydantic's models, and how a broken one is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ..errors import InvalidRequest
from ..jsontext import clean, escape
from . import rules


def _telling(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The rule as pydantic tells it: in the rule's words, and under its name."""
    kind = rule.__name__

    def check(value: Any) -> Any:
        try:
            return rule(value)
        except ValueError as error:
            raise PydanticCustomError(kind, "{reason}", {"reason": str(error)}) from None

    return check


class _Few(BaseModel):
    model_config = ConfigDict(defer_build=True)  # here and below: what reads a body is built when the first such body comes

    @classmethod
    def read(cls, value: Any, pointer: str = "") -> Self:
        """The body that `value`, which stands at `pointer`, is. Raises InvalidRequest, which names every broken field."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise problem(error, pointer) from None

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        _telling(rules.few)(value)
        return value


class Strict(_Few):
    """A body of a producer or an operator: unknown fields are refused, a typo must not be silently ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True, defer_build=True)


class Tolerant(_Few):
    """A body of a worker: unknown fields are ignored, since boxes upgrade by themselves."""

    model_config = ConfigDict(strict=True, extra="ignore", alias_generator=to_camel, frozen=True, defer_build=True)


def _uuid(value: Any) -> UUID:
    return UUID(_telling(rules.identity)(value))


Identifier = Annotated[str, Field(min_length=1, max_length=rules.LONGEST_NAME), AfterValidator(_telling(rules.identifier))]
TagKey = Annotated[Identifier, AfterValidator(_telling(rules.tag_key))]
TagValue = Annotated[str, Field(max_length=255), AfterValidator(_telling(rules.storable))]
TaskType = Annotated[
    str, Field(json_schema_extra={"pattern": f"^{rules.TYPE.pattern}$"}), AfterValidator(_telling(rules.task_type))
]
SchemaVersion = Annotated[int, Field(ge=1, le=rules.GREATEST_INT)]
PathName = Annotated[
    str, Field(json_schema_extra={"pattern": f"^{rules.PATH_NAME.pattern}$"}), AfterValidator(_telling(rules.path_name))
]
Instant = Annotated[datetime, BeforeValidator(_telling(rules.instant), json_schema_input_type=str)]
Id = Annotated[UUID, BeforeValidator(_uuid, json_schema_input_type=str)]
Measurable = AfterValidator(_telling(rules.measurable))
Seconds = Annotated[float, Field(ge=0, le=rules.LONGEST_SECONDS, allow_inf_nan=False), Measurable]
PositiveSeconds = Annotated[float, Field(gt=0, le=rules.LONGEST_SECONDS, allow_inf_nan=False), Measurable]
Priority = Annotated[int, Field(ge=-100, le=100)]
Limit = Annotated[int, Field(ge=1, le=1_000_000)]
Note = Annotated[str, Field(max_length=rules.TEXT_BYTES), AfterValidator(clean)]


def problem(error: ValidationError, prefix: str = "") -> InvalidRequest:
    """The refusal for a body that a model did not take: every broken field with its JSON pointer."""
    errors = []
    try:
        found = error.errors(include_url=False, include_input=True)
    except UnicodeEncodeError:  # of a leniently read report: its text cannot even be told back
        return InvalidRequest("a text holds a lone surrogate", prefix)
    for item in found:
        pointer = prefix + "".join(f"/{escape(str(part))}" for part in item["loc"])
        if item["type"] == "task_type":
            return rules.broken_type(str(item["input"]), pointer)
        message = {"missing": "is required", "extra_forbidden": "is not a known field"}.get(item["type"], item["msg"])
        errors.append({"pointer": pointer, "message": message})
    return rules.broken(errors)
