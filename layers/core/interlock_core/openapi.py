"""The OpenAPI 3.1 document, made from the endpoints' own declarations and the models that validate (GET /openapi.json).

What the edge enforces (method, path, kinds of key, body, status) is read from the Endpoints; `operations` adds the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import fields
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from . import errors as e
from .http import Endpoint
from .operations import OPERATIONS, Operation, Parameter
from .version import VERSION
from .wire.answers import ProblemView

REF = "#/components/schemas/{model}"
_PATH_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
_PART = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "id": {"type": "string", "format": "uuid"},
    "taskId": {"type": "string", "format": "uuid"},
    "attemptId": {"type": "string", "format": "uuid"},
    "workerId": _PATH_NAME,
    "instanceId": {"type": "string", "minLength": 1, "maxLength": 255},
    "group": _PART,
    "name": _PART,
    "version": {"type": "integer", "minimum": 1, "maximum": 2_147_483_647},
}
_TAGS = ("tasks", "workers", "keys", "project", "projects", "task-types", "limits", "audit", "stream-tickets")
_KEY_ID = {"type": "string", "pattern": "^[A-Za-z0-9]{16}$"}


class Undescribed(Exception):
    """An endpoint without an operation, an operation without an endpoint, or one name for two bodies; the text names it."""


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document of these endpoints. Raises Undescribed."""
    declared = {(endpoint.method, endpoint.path): endpoint for endpoint in endpoints}
    if declared.keys() != OPERATIONS.keys():
        raise Undescribed(f"only declared or only described: {sorted(declared.keys() ^ OPERATIONS.keys())}")
    schemas = _schemas(declared)
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for place, operation in OPERATIONS.items():
        method, path = place
        paths[path][method.lower()] = _operation(declared[place], operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Interlock",
            "version": VERSION,
            "summary": "A durable task service: fenced attempts, declared effect safety, honest outcomes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [],
        "paths": dict(paths),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of the service: `Authorization: Bearer il_…`. One project, one kind.",
                }
            },
            "headers": {"RequestId": {"description": "Names this request in the service's log.", "schema": {"type": "string"}}},
        },
    }


def _schemas(declared: dict[tuple[str, str], Endpoint]) -> dict[str, Any]:
    models: list[type[BaseModel]] = [ProblemView]
    structs: list[type[msgspec.Struct]] = []
    for place, operation in OPERATIONS.items():
        body = _body_model(declared[place], operation)
        if body is not None and issubclass(body, msgspec.Struct):
            structs.append(body)
        elif body is not None:
            models.append(body)
        models += _answer_models(operation.answer)
    _, found = models_json_schema([(model, "validation") for model in dict.fromkeys(models)], by_alias=True, ref_template=REF)
    _, schemas = msgspec.json.schema_components(dict.fromkeys(structs), ref_template=REF.format(model="{name}"))
    if doubled := schemas.keys() & found["$defs"].keys():
        raise Undescribed(f"a struct and a model share a name: {sorted(doubled)}")
    schemas |= found["$defs"]
    return {name: _tidy(schemas[name]) for name in sorted(schemas)}


def _tidy(schema: Any) -> Any:
    """Without titles, which say nothing that the name does not, and with patterns that are not Python's own."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {k: _tidy(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    if str(tidy.get("pattern", "")).startswith(r"\A"):
        pattern = tidy.pop("pattern")[2:-2]
        if "(?" not in pattern:  # which is Python's as well, or says more than it explains
            tidy["pattern"] = f"^{pattern}$"
    if isinstance(tidy.get("description"), str):
        tidy["description"] = re.sub(r"\s+", " ", tidy["description"])
    return tidy


def _answer_models(answer: Any) -> list[type[BaseModel]]:
    if isinstance(answer, str):
        return []
    if isinstance(answer, type):
        return [answer]
    return list(answer.__args__)


def _body_model(endpoint: Endpoint, operation: Operation) -> Any:
    return operation.body or endpoint.body


def _operation(endpoint: Endpoint, operation: Operation) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": re.sub(r"\s+", " ", endpoint.summary),
        "tags": [_tag(endpoint.path)],
    }
    if endpoint.keys:
        found["description"] = f"Needs a key of the kind {' or '.join(endpoint.keys)}."
        found["security"] = [{"key": []}]
        found["x-interlock-keys"] = list(endpoint.keys)
    parameters = [_path_parameter(endpoint.path, name) for name in names] + [_query_parameter(p) for p in operation.query]
    if parameters:
        found["parameters"] = parameters
    model = _body_model(endpoint, operation)
    if model is not None:
        content: dict[str, Any] = {"schema": {"$ref": REF.format(model=model.__name__)}}
        if operation.example is not None:
            content["example"] = operation.example
        required = (
            any(field.required for field in fields(model))
            if issubclass(model, msgspec.Struct)
            else any(field.is_required() for field in model.model_fields.values())
        )
        found["requestBody"] = {"required": required, "content": {"application/json": content}}
    found["responses"] = _responses(endpoint, operation, bool(names), model is not None)
    return found


def _tag(path: str) -> str:
    if not path.startswith("/v1/"):
        return "service"
    if "/attempts/" in path or path == "/v1/claims":
        return "attempts"
    name = path.split("/")[2]
    return {"project": "projects"}.get(name, name) if name in _TAGS else "service"


def _path_parameter(path: str, name: str) -> dict[str, Any]:
    schema = _KEY_ID if path.startswith("/v1/keys/") else _PATH_PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.text,
        "schema": parameter.schema,
    }
    if parameter.repeatable:
        found |= {"style": "form", "explode": True}
    return found


def _responses(endpoint: Endpoint, operation: Operation, has_path_parameters: bool, has_body: bool) -> dict[str, Any]:
    headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    found: dict[str, Any] = {}
    for status in (endpoint.status, *operation.also):
        answer: dict[str, Any] = {
            "description": "Done." if status == endpoint.status else "Done before: nothing was changed.",
            "headers": headers,
        }
        if operation.id == "submitTask":
            answer["headers"] = headers | {"Location": {"description": "The path of the task.", "schema": {"type": "string"}}}
        answer["content"] = _content(operation.answer)
        found[str(status)] = answer
    for status, codes in sorted(_refusals(endpoint, operation, has_path_parameters, has_body).items()):
        schema = {"allOf": [{"$ref": REF.format(model="ProblemView")}, {"properties": {"code": {"enum": codes}}}]}
        found[str(status)] = {
            "description": " or ".join(f"`{code}`" for code in codes),
            "headers": headers,
            "content": {"application/problem+json": {"schema": schema}},
        }
    return found


def _content(answer: Any) -> dict[str, Any]:
    if answer == "application/json":
        return {answer: {"schema": {"type": "object"}}}
    if isinstance(answer, str):
        return {answer: {"schema": {"type": "string"}}}
    if isinstance(answer, type):
        return {"application/json": {"schema": {"$ref": REF.format(model=answer.__name__)}}}
    schema = TypeAdapter(answer).json_schema(ref_template=REF)
    return {"application/json": {"schema": {"anyOf": schema["anyOf"]}}}


def _refusals(endpoint: Endpoint, operation: Operation, has_path_parameters: bool, has_body: bool) -> dict[int, list[str]]:
    found = list(operation.refusals)
    if endpoint.keys:
        found += [e.InvalidRequest, e.Unauthenticated, e.KeyRevoked, e.ScopeDenied, e.Internal, e.Unavailable]
    if has_path_parameters:
        found.append(e.NotFound)
    if any(p.name == "cursor" for p in operation.query):
        found += [e.InvalidCursor, e.PayloadTooLarge]
    if has_body:
        found += [e.InvalidJson, e.PayloadTooLarge, e.UnsupportedMediaType]
    codes: defaultdict[int, set[str]] = defaultdict(set)
    for problem in found:
        codes[problem.status].add(problem.code)
    return {status: sorted(names) for status, names in codes.items()}
