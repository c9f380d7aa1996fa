"""What `template.yaml` says about the service: its functions, their routes and their schedules.

Every local host reads it, so that the template cannot drift from what is tested.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
UNIT_SECONDS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}


@dataclass(frozen=True)
class Route:
    """`method` and `path` (with `{name}` parts) as in the template."""

    method: str
    path: str


@dataclass(frozen=True)
class Function:
    """A function of the template. `every_seconds` is its schedule's rate, if it has one: the finest of all profiles."""

    name: str
    folder: Path
    routes: tuple[Route, ...]
    every_seconds: float | None
    logical_id: str = ""


class TemplateError(Exception):
    """The template says something that this reader does not know; the text names the place."""


# The C parser where PyYAML was built with it: ten times quicker, and every start reads the template.
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[valid-type, misc]  # chosen at run time
    """Safe YAML that takes CloudFormation's short tags (`!Ref X`) for their long form (`{"Ref": X}`)."""


def _read_tag(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        text = loader.construct_scalar(node)
        return {name: text.split(".", 1) if suffix == "GetAtt" else text}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _read_tag)


def read_template(path: Path = ROOT / "template.yaml") -> dict[str, Any]:
    """The whole template as plain data."""
    with path.open(encoding="utf-8") as file:
        document = yaml.load(file, _Loader)  # noqa: S506 (a subclass of the safe loader)
    assert isinstance(document, dict)
    return document


@cache
def read_functions(path: Path = ROOT / "template.yaml") -> tuple[Function, ...]:
    """Every function in the template's order. Raises `TemplateError`."""
    functions = []
    document = read_template(path)
    for name, resource in document["Resources"].items():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        properties = resource["Properties"]
        folder = path.parent / properties["CodeUri"]
        routes: list[Route] = []
        rate: float | None = None
        for event_name, event in properties.get("Events", {}).items():
            values = event["Properties"]
            if event["Type"] == "HttpApi" and "Path" not in values:
                continue  # what no route takes: every local host answers that by itself
            if event["Type"] == "HttpApi":
                routes.append(Route(values["Method"].upper(), values["Path"]))
            elif event["Type"] in ("Schedule", "ScheduleV2"):
                rate = _read_rate(values.get("ScheduleExpression") or values["Schedule"], document.get("Mappings", {}))
            else:
                raise TemplateError(f"{name}.{event_name}: event type {event['Type']}")
        functions.append(Function(folder.name, folder, tuple(routes), rate, name))
    return tuple(functions)


def _read_rate(expression: str | dict[str, Any], mappings: dict[str, Any]) -> float:
    if isinstance(expression, dict) and "Fn::FindInMap" in expression:  # by the profile
        name, _, key = expression["Fn::FindInMap"]
        return min(_read_rate(profile[key], mappings) for profile in mappings[name].values())
    if isinstance(expression, dict) and "Fn::If" in expression:  # where a parameter says nothing else
        return _read_rate(expression["Fn::If"][2], mappings)
    if not isinstance(expression, str):
        raise TemplateError(f"schedule {expression!r}: only text, or a mapping by the profile, is understood")
    match = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", expression)
    if match is None:
        raise TemplateError(f"schedule {expression!r}: only rate(n minutes|hours|days) is understood")
    return int(match[1]) * UNIT_SECONDS[match[2]]
