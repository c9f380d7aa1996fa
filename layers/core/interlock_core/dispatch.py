"""The application object: Starlette, with paths found by a look-up instead of a walk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.convertors import StringConvertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

Segments = tuple[str | None, ...]
Endpoint = Callable[[Request], Awaitable[Response]]


class Api(Starlette):
    """Paths whose parameters are single segments go straight to their endpoint; everything else takes the usual way.

    Each endpoint made by `http.api` renders its own refusals and faults, so that the layers which Starlette puts around a
    route (a fifth of what a submit costs) have nothing left to do there.
    """

    def map_paths(self, routes: Iterable[Route]) -> None:
        """To be called once, with the routes of the application. Of two routes that fit a path, the one with fewer parameters is taken."""
        self._endpoints: dict[tuple[str, Segments], tuple[Endpoint, tuple[str, ...]]] = {}
        self._masks: dict[int, dict[tuple[int, ...], None]] = {}  # which places are parameters, of paths of so many segments
        for route in sorted(routes, key=lambda route: route.path.count("{")):
            if not all(isinstance(convertor, StringConvertor) for convertor in route.param_convertors.values()):
                continue
            parts = route.path.split("/")
            mask = tuple(place for place, part in enumerate(parts) if part.startswith("{"))
            if any("{" in part for place, part in enumerate(parts) if place not in mask):
                continue
            names = tuple(parts[place].strip("{}") for place in mask)
            self._masks.setdefault(len(parts), {})[mask] = None
            for method in route.methods or ():
                self._endpoints.setdefault((method, _hide(parts, mask)), (route.endpoint, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        found = self._find(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await super().__call__(scope, receive, send)
            return
        endpoint, scope["path_params"] = found
        scope["app"] = self
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    def _find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        parts = path.split("/")
        for mask in self._masks.get(len(parts), ()):
            known = self._endpoints.get((method, _hide(parts, mask)))
            if known is not None and all(parts[place] for place in mask):
                return known[0], dict(zip(known[1], (parts[place] for place in mask), strict=True))
        return None


def _hide(parts: list[str], mask: tuple[int, ...]) -> Segments:
    """The segments of a path, None in place of each parameter."""
    return tuple(None if place in mask else part for place, part in enumerate(parts)) if mask else tuple(parts)
