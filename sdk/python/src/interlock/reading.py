"""Reading lists of the service: pages, the filter of tasks, and answers as dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import quote

from interlock.tasks import read_time, write_time

if TYPE_CHECKING:
    from interlock.client import Client

View = TypeVar("View")
Read = Callable[[Any], Any]


class TaskFilter(TypedDict, total=False):
    """Which tasks: the filters of `TaskProducer.list`, all of which must hold. `tag` is `key:value`."""

    status: str | Sequence[str] | None
    type: str | None
    schema_version: int | None
    pool: str | None
    tag: str | None
    idempotency_key: str | None
    parent_id: str | None
    rerun_of: str | None
    failure_code: str | None
    schedule_owner: str | None
    schedule_name: str | None
    created_after: datetime | str | None
    created_before: datetime | str | None
    finished_after: datetime | str | None
    finished_before: datetime | str | None


def filter_to_wire(given: TaskFilter) -> dict[str, Any]:
    """The filter as the protocol names it. Raises ValueError for a name that is no filter: a typo must not widen it."""
    known = TaskFilter.__annotations__
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{name!r} is no filter of tasks; known are {', '.join(known)}")
        if value is None:
            continue
        if name == "status":
            found["status"] = [value] if isinstance(value, str) else [*value]  # type: ignore[misc]  # a TypedDict's values lose their types
        else:
            found[camel(name)] = write_time(value) if isinstance(value, datetime) else value
    return found


def read_pages(
    client: Client, path: str, params: Mapping[str, Any] | None = None, page_size: int = 50
) -> Iterator[dict[str, Any]]:
    """The items of a list; pages are fetched as the iterator moves on."""
    cursor: str | None = None
    while True:
        answer = client.request("GET", path, params={**(params or {}), "limit": page_size, "cursor": cursor})
        yield from answer["items"]
        cursor = answer.get("nextCursor")
        if not cursor:
            return


def fill(kind: type[View], view: Mapping[str, Any]) -> View:
    """A dataclass from an answer: each field by its name in camelCase, through its `read` if it has one; `raw` is the answer.

    A field that the answer lacks, or that is null where the dataclass has a default, keeps its default.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # every View here is a dataclass
        if field.name == "raw":
            values["raw"] = view
            continue
        value = view.get(field.metadata.get("name") or camel(field.name))
        if value is None and (field.default is not MISSING or field.default_factory is not MISSING):
            continue
        read: Read | None = field.metadata.get("read")
        values[field.name] = read(value) if read is not None else value
    return kind(**values)


def camel(name: str) -> str:
    """A field's name on the wire."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def path_of(*parts: str) -> str:
    """A path below /v1; no part can reach another path."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def task_path(task_id: str) -> str:
    """The path of a task."""
    return path_of("tasks", task_id)


def type_path(type: str, schema_version: int) -> str:
    """The path of a task type at one version. Raises ValueError for what is no type."""
    group, slash, name = type.partition("/")
    if not (group and slash and name):
        raise ValueError(f"{type!r} is no task type: it is group/name")
    return path_of("task-types", group, name, str(schema_version))


TIME: dict[str, Any] = {"read": read_time}
"""Metadata of a field that is a time."""
