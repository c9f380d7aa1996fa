"""template.yaml, the function folders and the apps in them agree, in both directions."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest

import sam_cli
from interlock_core.settings import PREFIX, Settings
from repo.tree import ROOT
from service import _load as load
from template import Function, read_functions, read_template

FUNCTIONS = read_functions()
HTTP = [function for function in FUNCTIONS if function.routes]
SCHEDULED = [function for function in FUNCTIONS if function.every_seconds is not None]
# Runs in a container of its own: its route is the load balancer's, not the gateway's.
CONTAINERS = {"stream"}


def name_of(function: Function) -> str:
    return function.name


def resources(kind: str) -> dict[str, dict[str, Any]]:
    found = read_template()["Resources"].items()
    return {name: resource.get("Properties", {}) for name, resource in found if resource["Type"] == kind}


def routes_of(module: ModuleType) -> set[tuple[str, str]]:
    # Starlette adds HEAD to every GET by itself; the gateway routes GET only.
    found = ((method, route.path) for route in module.app.routes for method in route.methods)
    return {(method, path) for method, path in found if method != "HEAD"}


def test_every_function_folder_is_in_the_template_and_the_other_way_round() -> None:
    folders = {folder.name for folder in (ROOT / "functions").iterdir() if (folder / "app.py").exists()}
    assert {function.name for function in FUNCTIONS} == folders - CONTAINERS


@pytest.mark.parametrize("function", HTTP, ids=name_of)
def test_a_function_serves_exactly_the_templates_routes(function: Function) -> None:
    assert routes_of(load(function.folder)) == {(route.method, route.path) for route in function.routes}


def test_no_route_belongs_to_two_functions() -> None:
    shapes = [(route.method, re.sub(r"\{\w+\}", "{}", route.path)) for function in HTTP for route in function.routes]
    assert sorted(shapes) == sorted(set(shapes))


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_the_lambda_entry_is_a_function_of_event_and_context(function: Function) -> None:
    handler = load(function.folder).handler
    assert len(inspect.signature(handler).parameters) == 2


@pytest.mark.parametrize("function", SCHEDULED, ids=name_of)
def test_a_scheduled_function_can_be_run_by_a_local_host(function: Function) -> None:
    run = load(function.folder).run
    assert inspect.iscoroutinefunction(run)
    assert next(iter(inspect.signature(run).parameters)) == "database"


def test_the_schedules_are_the_promised_ones() -> None:
    assert {function.name: function.every_seconds for function in SCHEDULED} == {"sweep": 60, "retention": 3600}


def test_http_functions_are_cut_off_before_the_gateway_gives_up() -> None:
    general = read_template()["Globals"]["Function"]
    for name, function in resources("AWS::Serverless::Function").items():
        if any(event["Type"] == "HttpApi" for event in function.get("Events", {}).values()):
            assert function.get("Timeout", general["Timeout"]) < 29, name


def test_every_variable_of_the_template_is_a_setting() -> None:
    known = {PREFIX + field.name.upper() for field in fields(Settings)}
    places = [read_template()["Globals"]["Function"], *resources("AWS::Serverless::Function").values()]
    given = {name for place in places for name in place.get("Environment", {}).get("Variables", {})}
    assert given - {"PYDANTIC_DISABLE_PLUGINS"} <= known  # pydantic's own


def test_functions_layer_and_builder_are_of_one_python() -> None:
    template = read_template()
    assert template["Globals"]["Function"]["Runtime"] == {"Ref": "Runtime"}
    assert template["Resources"]["CoreLayer"]["Metadata"]["BuildMethod"] == {"Ref": "Runtime"}
    runtime = template["Parameters"]["Runtime"]
    assert runtime["AllowedValues"] == [f"python{version}" for version in sam_cli.PYTHONS]
    assert runtime["Default"] in runtime["AllowedValues"]


def test_no_function_brings_requirements_of_its_own() -> None:
    # What a function needs is in the layer, once; the folder of a container is built by its own image.
    assert [path for path in (ROOT / "functions").rglob("requirements*.txt") if path.parent.name not in CONTAINERS] == []


def test_the_migrations_ride_along_with_the_function_that_applies_them() -> None:
    assert (ROOT / "functions" / "migrate" / "migrations").resolve() == ROOT / "migrations"
