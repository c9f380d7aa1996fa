"""The filters of tasks, declared once for all commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from interlock.cli.completion import offer_types
from interlock.cli.values import read_instant, read_tags, read_type

Result = TypeVar("Result")


def option(metavar: str, help: str, offer: Any = None) -> Any:
    """The type of an option with one value that may be absent; `offer` gives the names that a shell completes."""
    return Annotated[str | None, typer.Option(metavar=metavar, help=help, autocompletion=offer)]


FILTERS: tuple[tuple[str, Any], ...] = (
    ("status", Annotated[list[str] | None, typer.Option(metavar="STATUS", help="Only this status; may be repeated.")]),
    ("type", option("TYPE", "Only this type (group/name or group/name@version).", offer_types)),
    ("schema_version", Annotated[int | None, typer.Option(metavar="N", help="Only this version.")]),
    ("pool", option("NAME", "Only this pool.")),
    ("tag", option("K=V", "Only with this tag.")),
    ("idempotency_key", option("K", "Only with this key.")),
    ("failure_code", option("CODE", "Only with this failure.")),
    ("parent", option("ID", "Only children of this task.")),
    ("rerun_of", option("ID", "Only reruns of this task.")),
    ("schedule", option("NAME", "Only firings of this schedule.")),
    ("schedule_owner", option("ID", "Only firings of this owner's schedules.")),
    ("created_after", option("TIME", "RFC 3339, or how long ago (2h).")),
    ("created_before", option("TIME", "Likewise.")),
    ("finished_after", option("TIME", "Likewise.")),
    ("finished_before", option("TIME", "Likewise.")),
)


def filtered(function: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command the filters as options; its keyword `filter` is then what `read_filter` makes of them."""
    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "filter"
    ]
    added = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in FILTERS]

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Result:
        given = {name: options.pop(name) for name, _ in FILTERS}
        return function(*arguments, **options, filter=read_filter(**given))

    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    del run.__wrapped__  # else its signature would count, not this one
    return run


def read_filter(
    *,
    type: str | None,
    schema_version: int | None,
    tag: str | None,
    status: list[str] | None,
    parent: str | None,
    schedule: str | None,
    **rest: str | None,
) -> dict[str, Any]:
    """The filter by the SDK's names (interlock.reading.TaskFilter), without what was not given."""
    name, version = read_type(type, schema_version) if type is not None else (None, schema_version)
    tags = read_tags([tag]) if tag is not None else {}
    found: dict[str, Any] = {
        "status": status or None,
        "type": name,
        "schema_version": version,
        "tag": next((f"{key}:{value}" for key, value in tags.items()), None),
        "parent_id": parent,
        "schedule_name": schedule,
    }
    for place, value in rest.items():
        instant = place.endswith(("_after", "_before"))
        found[place] = read_instant(value, f"--{place.replace('_', '-')}", past=True) if instant else value
    return {place: value for place, value in found.items() if value is not None}
