"""What a build holds: the library and its SQL in the layer, the migrations beside their runner, nothing that is not needed."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

import built as builds
from gateway import make_event
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


def run_alone(built: Any, logical_id: str, program: str) -> str:
    """What a program prints that has a function's modules and its layer's, and no others."""
    places = [built.artifact(logical_id), built.artifact("CoreLayer") / "python"]
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "INTERLOCK_SERVER_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x",
    }
    line = [str(builds.find_python()), "-S", "-c", program]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


#: Functions that read no body, or only claims and reports: importing pydantic would be a fifth of their cold start.
WITHOUT_MODELS = ("claim", "report", "read", "sweep", "retention")


@pytest.mark.parametrize("function", read_functions(), ids=lambda function: function.name)
def test_a_function_imports_only_what_its_calls_need(built: Any, function: Function) -> None:
    told = run_alone(built, function.logical_id, "import sys, app; print(*sys.modules)").split()
    assert {"interlock_core", "psycopg"} <= set(told)
    heavy = {"boto3", "httpx", "uvicorn"} | ({"pydantic"} if function.name in WITHOUT_MODELS else set())
    assert heavy & set(told) == set()


def test_what_was_imported_is_kept_out_of_the_collectors_way(built: Any) -> None:
    """A whole collection would go through some fifty thousand objects that stay."""
    event = make_event("GET", "/v1/tasks", route="GET /v1/tasks", headers=[("host", "a.test")])
    program = f"import app, gc; assert app.handler({event!r}, None)['statusCode'] == 401; print(gc.get_freeze_count())"
    assert int(run_alone(built, "ReadFunction", program)) > 20_000


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
