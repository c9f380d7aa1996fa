"""Every function and the stream as one ASGI app: what `scripts/dev` serves and the tests call in process.

The functions' endpoints stand side by side in one flat app, since a router inside a router is paid at every
request. Which endpoint stands where is the template's word; the function's own app must know the route too.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from interlock_core.db import Database
from interlock_core.http import compose
from interlock_core.settings import Settings
from template import ROOT, Function, read_functions

STREAM = ROOT / "functions" / "stream"


Endpoint = Callable[[Request], Awaitable[Response]]


class RouteMissing(Exception):
    """The template names a route that its function does not serve."""


@dataclass(frozen=True)
class Scheduled:
    """A function that runs by the clock: `run(database, settings)` every `every_seconds`."""

    name: str
    every_seconds: float
    run: Callable[[Database, Settings], Awaitable[dict[str, Any]]]


def build_app(settings: Settings | None = None, functions: Iterable[Function] | None = None) -> Starlette:
    """The flat app. Its host sets `app.state.database` before the first request. Raises `RouteMissing`."""
    routes: list[Route] = []
    apps: list[Starlette] = []
    for function in read_functions() if functions is None else functions:
        if not function.routes:
            continue
        app = _load(function.folder).app
        apps.append(app)
        for wanted in function.routes:
            found = _find(app, wanted.method, wanted.path)
            if found is None:
                raise RouteMissing(f"template.yaml: functions/{function.name} serves no {wanted.method} {wanted.path}")
            routes.append(Route(found.path, found.endpoint, methods=[wanted.method], name=f"{wanted.method} {wanted.path}"))
    stream = _load(STREAM).app  # a container, and not in the template's routes: all that it serves, unless a function does
    apps.append(stream)
    routes += [route for route in stream.routes if isinstance(route, Route) and not _serves(routes, route)]
    flat = compose(_merge(routes), settings)
    # What the OpenAPI document is made of, were this the app of one function.
    flat.state.endpoints = tuple(endpoint for app in apps for endpoint in getattr(app.state, "endpoints", ()))
    return flat


def stream_lifespan(app: Starlette) -> AbstractAsyncContextManager[Any]:
    """Serve within it: the stream's own life, on the flat app and its database."""
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[Any]] = _load(STREAM).lifespan
    return lifespan(app)


def tune_listener(listener: socket.socket) -> None:
    """Bound what a reader that has gone can pin. The buffers stay the system's: whole answers leave by them too."""
    _load(STREAM, "listener").tune(listener, send_buffer=None)


def close_streams(app: Starlette) -> None:
    """End the open streams and long waits, so that their host can stop."""
    _load(STREAM).close(app)


def load_scheduled(functions: Iterable[Function] | None = None) -> list[Scheduled]:
    """The template's scheduled functions."""
    every = read_functions() if functions is None else functions
    return [Scheduled(f.name, f.every_seconds, _load(f.folder).run) for f in every if f.every_seconds is not None]


def _load(folder: Path, file: str = "app") -> ModuleType:
    """A module of a function, with the folder itself importable meanwhile, as on Lambda.

    Modules beside it are forgotten again, so that two functions may use the same name for one.
    """
    name = f"function_{folder.name}_{file}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, folder / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for new in set(sys.modules) - before:
            if str(getattr(sys.modules[new], "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[new]
    sys.modules[name] = module
    return module


def _shape(path: str) -> str:
    """A path without the names of its parameters: the template and the app may call them differently."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def _find(app: Starlette, method: str, path: str) -> Route | None:
    for route in app.routes:
        if isinstance(route, Route) and _shape(route.path) == _shape(path) and method in (route.methods or ()):
            return route
    return None


def _serves(routes: list[Route], other: Route) -> bool:
    return any(_shape(r.path) == _shape(other.path) and (r.methods or set()) & (other.methods or set()) for r in routes)


def _merge(routes: list[Route]) -> list[Route]:
    """One route for each path, literal paths before those with parameters, so that none hides another.

    Two routes of one path would name only the first one's methods where a third is asked for.
    """
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    merged = [found[0] if len(found) == 1 else _join(path, found) for path, found in by_path.items()]
    return sorted(merged, key=lambda route: route.path.count("{"))


def _join(path: str, routes: list[Route]) -> Route:
    endpoints: dict[str, Endpoint] = {method: route.endpoint for route in routes for method in route.methods or ()}

    async def serve(request: Request) -> Response:
        return await endpoints[request.method](request)

    return Route(path, serve, methods=list(endpoints), name=", ".join(route.name for route in routes))
