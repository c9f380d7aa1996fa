"""The application object: Starlette, with the plain paths found by a look-up instead of a walk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


class Api(Starlette):
    """Routes without parameters go straight to their endpoint.

    Each endpoint made by `http.api` renders its own refusals and faults, so that the layers which Starlette puts around a
    route (a fifth of what a submit costs) have nothing left to do there. Everything else takes the usual way.
    """

    def map_plain_paths(self, routes: Iterable[Route]) -> None:
        """To be called once, with the routes of the application."""
        self._plain: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            (method, route.path): route.endpoint for route in routes if "{" not in route.path for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        endpoint = self._plain.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        scope["path_params"] = {}
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
