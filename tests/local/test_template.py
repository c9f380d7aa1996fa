"""What hosts read from template.yaml, and that a function which lacks a route of it is found at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from service import RouteMissing, build_app
from support.api import Http
from template import Function, Route, TemplateError, read_functions

TEMPLATE = """
Resources:
  Table:
    Type: AWS::DynamoDB::Table
  ReadFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/read
      Role: !GetAtt Role.Arn
      Events:
        One:
          Type: HttpApi
          Properties: {ApiId: !Ref Api, Method: get, Path: "/v1/tasks/{taskId}"}
  SweepFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/sweep
      Events:
        Tick:
          Type: ScheduleV2
          Properties: {ScheduleExpression: "RATE"}
"""


def test_routes_and_schedules_are_read(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE.replace("RATE", "rate(5 minutes)"))
    read, sweep = read_functions(path)
    assert (read.name, read.folder, read.every_seconds) == ("read", tmp_path / "functions/read", None)
    assert read.routes == (Route("GET", "/v1/tasks/{taskId}"),)
    assert (sweep.name, sweep.routes, sweep.every_seconds) == ("sweep", (), 300)


def test_a_schedule_that_no_local_host_can_keep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE.replace("RATE", "cron(0 2 * * ? *)"))
    with pytest.raises(TemplateError, match=r"cron\(0 2"):
        read_functions(path)


def test_a_route_that_the_function_lacks_is_named() -> None:
    functions = [
        Function(f.name, f.folder, (*f.routes, Route("GET", "/v1/nowhere")), None) for f in read_functions() if f.name == "submit"
    ]
    with pytest.raises(RouteMissing, match="functions/submit serves no GET /v1/nowhere"):
        build_app(functions=functions)


def test_every_route_of_the_template_is_served() -> None:
    wanted = {(route.method, route.path) for function in read_functions() for route in function.routes}
    app = build_app()
    served = {tuple(name.split(" ", 1)) for route in app.routes for name in getattr(route, "name", "").split(", ") if " " in name}
    assert wanted <= served
    assert len(wanted) > 20


async def test_a_method_that_a_path_lacks_is_told_which_it_has(http: Http) -> None:
    answer = await http.delete("/v1/tasks")
    assert answer.status_code == 405
    assert {name.strip() for name in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}
    assert answer.json()["code"] == "METHOD_NOT_ALLOWED"
