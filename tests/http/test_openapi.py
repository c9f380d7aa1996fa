"""The OpenAPI document: whole, made anew without a difference, and what the service really serves."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

import generate
from interlock_core.http import Call, endpoint
from interlock_core.openapi import Undescribed, document
from interlock_core.version import VERSION
from support.api import Http
from template import ROOT, read_functions

DOCUMENT: dict[str, Any] = json.loads(generate.CONTRACT.read_text(encoding="utf-8"))
OPERATIONS = [(path, method, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()]


def test_generated_files_are_what_would_be_written() -> None:
    for path, text in generate.make().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/lib/generate.py"


def test_check_fails_on_a_difference(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    monkeypatch.setattr(generate, "make", lambda: {ROOT / "README.new": "text\n"})
    assert generate.main(["--check"]) == 1
    assert "+text" in capsys.readouterr().out
    assert not (ROOT / "README.new").exists()
    assert generate.main(["--nonsense"]) == 2


async def test_the_service_serves_the_document_and_the_page(http: Http) -> None:
    answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT
    page = await http.get("/tasks.md")
    assert page.headers["content-type"].startswith("text/markdown")
    assert page.text == (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_every_route_of_the_template_is_described_once() -> None:
    routes = {(route.path, route.method.lower()) for function in read_functions() for route in function.routes}
    assert {(path, method) for path, method, _ in OPERATIONS} == routes
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(names) == len(set(names))


def test_every_operation_says_what_it_needs() -> None:
    for path, method, operation in OPERATIONS:
        parameters = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert parameters == set(re.findall(r"\{(\w+)\}", path)), path
        assert operation["summary"], path
        open_to_all = not path.startswith("/v1/")
        assert ("security" in operation) is not open_to_all, path
        assert open_to_all or {"401", "403", "503"} <= operation["responses"].keys(), path
        assert ("requestBody" in operation) == (method in ("post", "put")), path
        for status, answer in operation["responses"].items():
            kind = "application/problem+json"
            assert (kind in answer["content"]) == (int(status) >= 400), (path, status)


def test_every_reference_leads_somewhere() -> None:
    references = set(re.findall(r'"\$ref": "(#[^"]+)"', json.dumps(DOCUMENT)))
    assert references
    for reference in references:
        found: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_bodies_of_producers_and_operators_are_closed_and_those_of_workers_open() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("Submit", "SubmitBatch", "Cancel", "Resolve", "NewKey", "NewProject", "Retry"):
        assert schemas[name]["additionalProperties"] is False, name
    for name in ("Claim", "Register", "CompleteBody", "HeartbeatBody", "ReleaseBody", "CompletionOne"):
        assert "additionalProperties" not in schemas[name], name


def test_the_version_is_the_packages() -> None:
    package = tomllib.loads((ROOT / "layers" / "core" / "pyproject.toml").read_text(encoding="utf-8"))
    assert package["project"]["version"] == VERSION == DOCUMENT["info"]["version"]


def test_an_endpoint_that_is_not_described_stops_the_document() -> None:
    @endpoint("GET", "/v1/unheard-of")
    async def unheard_of(call: Call) -> None:
        """Nothing."""

    with pytest.raises(Undescribed, match="unheard-of"):
        document([unheard_of])
