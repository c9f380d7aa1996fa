"""What a build holds: the library and its SQL in the layer, the migrations beside their runner, nothing that is not needed."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

import built as builds
from template import Function, read_functions
from template import read_template as read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_layer_holds_the_library_with_its_sql(built: Any) -> None:
    library = built.artifact("CoreLayer") / "python" / "interlock_core"
    source = {path.name for path in (read_root() / "layers" / "core" / "interlock_core" / "sql").glob("*.sql")}
    assert {path.name for path in (library / "sql").glob("*.sql")} == source != set()


def test_the_layer_holds_no_package_that_only_a_host_or_a_client_needs(built: Any) -> None:
    found = {path.name for path in (built.artifact("CoreLayer") / "python").iterdir()}
    assert found & {"boto3", "httpx", "uvicorn", "pytest", "interlock", "yaml"} == set()


#: Functions that read no body, or only claims and reports: importing pydantic would be a quarter of their cold start.
WITHOUT_MODELS = ("claim", "report", "read", "sweep", "retention")


@pytest.mark.parametrize("function", read_functions(), ids=lambda function: function.name)
def test_a_function_imports_only_what_its_calls_need(built: Any, function: Function) -> None:
    places = [built.artifact(function.logical_id), built.artifact("CoreLayer") / "python"]
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "INTERLOCK_SERVER_DATABASE_URL": "postgresql://nobody@nowhere/x",
    }
    line = [str(builds.find_python()), "-S", "-c", "import sys, app; print(*sys.modules)"]
    told = subprocess.run(line, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert {"interlock_core", "psycopg"} <= set(told)
    heavy = {"boto3", "httpx", "uvicorn"} | ({"pydantic"} if function.name in WITHOUT_MODELS else set())
    assert heavy & set(told) == set()


def test_every_function_was_built_with_its_entry(built: Any) -> None:
    template = built.template
    folders = {function.name for function in read_functions()}
    names = [name for name, resource in template["Resources"].items() if resource["Type"] == "AWS::Serverless::Function"]
    assert len(names) == len(folders)
    for name in names:
        assert (built.artifact(name) / "app.py").is_file(), name


def test_the_built_routes_are_the_sources(built: Any) -> None:
    def events(template: dict[str, Any]) -> dict[str, Any]:
        return {
            name: resource["Properties"]["Events"]
            for name, resource in template["Resources"].items()
            if "Events" in resource.get("Properties", {})
        }

    assert events(built.template) == events(read())


def read_root() -> Any:
    import template

    return template.ROOT
