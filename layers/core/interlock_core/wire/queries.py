"""Query strings of lists: known names only, each read by its own rule."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from starlette.requests import Request

from ..errors import InvalidRequest, InvalidType, Problem
from ..states import STATUSES
from .rules import TYPE
from .times import read


def query(request: Request, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The query parameters, as lists. Raises InvalidRequest for an unknown name: a typo must not be silently ignored."""
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            raise InvalidRequest(
                f"{name[:80]!r} is not a parameter of this call; known are {', '.join(names) or 'none'}", f"/{name[:80]}"
            )
        if "\x00" in value:
            raise InvalidRequest(f"{name} must not contain U+0000", f"/{name}")
        found.setdefault(name, []).append(value)
    return found


def _text(value: str) -> str:
    if not 1 <= len(value) <= 255 or "\x00" in value:
        raise ValueError("must have 1 to 255 characters, none of them U+0000")
    return value


def _type(value: str) -> str:
    if TYPE.fullmatch(value) is None:
        raise ValueError("must be group/name")
    return value


def _number(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", value) or not 1 <= int(value) <= 2_147_483_647:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


def _id(value: str) -> UUID:
    if len(value) != 36:
        raise ValueError("must be an id")
    return UUID(value)


def _tag(value: str) -> str:
    key, colon, wanted = value.partition(":")
    if not colon or not key or "\x00" in value:
        raise ValueError("must be key:value")
    return json.dumps({key: wanted})


class TaskFilter:
    """The filters of GET /v1/tasks by their names on the wire."""

    RULES: ClassVar[dict[str, tuple[str, Callable[[str], Any]]]] = {
        "type": ("type", _type),
        "schemaVersion": ("schema_version", _number),
        "pool": ("pool", _text),
        "tag": ("tag", _tag),
        "idempotencyKey": ("idempotency_key", _text),
        "parentId": ("parent_id", _id),
        "rerunOf": ("rerun_of", _id),
        "scheduleOwner": ("schedule_owner", _text),
        "scheduleName": ("schedule_name", _text),
        "failureCode": ("failure_code", _text),
        "createdAfter": ("created_after", read),
        "createdBefore": ("created_before", read),
        "finishedAfter": ("finished_after", read),
        "finishedBefore": ("finished_before", read),
    }
    NAMES = ("status", *RULES)


def task_filter(given: dict[str, list[str]], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters of the page statement, the filter as given: the scope of its cursors).

    Raises InvalidRequest, naming what is wrong below `prefix`.
    """
    if unknown := sorted(set(given) - set(TaskFilter.NAMES)):
        raise InvalidRequest(
            f"{unknown[0][:80]!r} is not a filter; known are {', '.join(TaskFilter.NAMES)}", f"{prefix}/{unknown[0][:80]}"
        )
    if empty := sorted(
        name for name, values in given.items() if not values
    ):  # a program's list that came out empty filters nothing
        raise InvalidRequest(f"{empty[0]} names no value; leave it out where it is not to filter", f"{prefix}/{empty[0]}")
    statuses = given.get("status")
    for status in statuses or []:
        if status not in STATUSES:
            raise InvalidRequest(f"status must be one of {', '.join(STATUSES)}", f"{prefix}/status")
    found: dict[str, Any] = {"status": statuses}
    for name, (column, rule) in TaskFilter.RULES.items():
        values = given.get(name, [])
        if len(values) > 1:
            raise InvalidRequest(f"{name} may be given once", f"{prefix}/{name}")
        found[column] = one(name, values[0], rule, prefix) if values else None
    return found, given


def named_type(group: str, name: str, version: str) -> tuple[str, int]:
    """(type, version) of a path. Raises InvalidType or InvalidRequest."""
    task_type = f"{group}/{name}"
    if TYPE.fullmatch(task_type) is None:
        raise InvalidType("the task type must be group/name", "/group")
    return task_type, one("version", version, _number)


def one_identifier(name: str, value: str) -> str:
    """A parameter that is an identifier: 1 to 255 characters, not blank, no control characters. Raises InvalidRequest."""
    found: str = one(name, value, _identifier)
    return found


def _identifier(value: str) -> str:
    if not value.strip() or len(value) > 255 or any(unicodedata.category(c) == "Cc" for c in value):
        raise ValueError("must have 1 to 255 characters, not blank, no control characters")
    return value


def one(name: str, value: str, rule: Callable[[str], Any], prefix: str = "") -> Any:
    """A parameter read by a rule; its ValueError becomes InvalidRequest naming the parameter."""
    try:
        return rule(value)
    except Problem:
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{name} {error}", f"{prefix}/{name}") from None
