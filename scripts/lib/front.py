"""API Gateway's HTTP API in front of built functions, as an ASGI application: its routes, its limits, its own answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway import Answer, make_event, read_answer

#: The gateway's own limit of a body, Lambda's of an event and of an answer (as JSON, coded bodies included), in bytes.
MAX_BODY, MAX_PAYLOAD = 10 * 1024 * 1024, 6 * 1024 * 1024
#: What takes longer is answered without the function, which goes on.
LIMIT_SECONDS = 29.0
_HOP_BY_HOP = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding", "upgrade"}

Invoke = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class Front:
    """The gateway: routes are `{"METHOD /path/{name}" or "$default": function}`."""

    def __init__(self, routes: Mapping[str, str], invoke: Invoke) -> None:
        self._routes = routes
        self._invoke = invoke
        # The one with the fewest parameters wins, as at the gateway.
        patterns = sorted((route for route in routes if route != "$default"), key=lambda route: route.count("{"))
        self._patterns = [(_compile(route), route) for route in patterns]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        assert scope["type"] == "http", "served without lifespan, and the gateway has no web sockets here"
        answer = await self._answer(scope, receive)
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()]
        headers += [(b"set-cookie", cookie.encode()) for cookie in answer.cookies]
        headers = [(name, value) for name, value in headers if name.decode() not in _HOP_BY_HOP]
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        body = await _read(receive)
        if body is None:
            return _own(413, "Request Entity Too Large")
        # Matched as it came: a coded slash parts nothing here. The function then sees it decoded.
        route = self._find(f"{method} {path}")
        if route is None:
            return _own(404, "Not Found")
        query = scope["query_string"].decode("latin-1")
        event = make_event(
            method,
            f"{path}?{query}" if query else path,
            route=route,
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
            body=body,
            source=(scope.get("client") or ("127.0.0.1", 0))[0],
        )
        if len(json.dumps(event, ensure_ascii=False).encode(errors="replace")) > MAX_PAYLOAD:
            return _own(413, "Request Entity Too Large")
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                result = await self._invoke(self._routes[route], event)
        except TimeoutError:
            return _own(503, "Service Unavailable")
        if len(json.dumps(result, ensure_ascii=False).encode(errors="replace")) > MAX_PAYLOAD:
            return _own(500, "Internal Server Error")
        return read_answer(result)

    def _find(self, target: str) -> str | None:
        for pattern, route in self._patterns:
            if pattern.fullmatch(target):
                return route
        return "$default" if "$default" in self._routes else None


def read_routes(template: Mapping[str, Any]) -> dict[str, str]:
    """`{route: logical id}` of every HTTP event of a built template; one without a path is `$default`."""
    routes: dict[str, str] = {}
    for logical_id, resource in template["Resources"].items():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        for event in resource["Properties"].get("Events", {}).values():
            if event["Type"] == "HttpApi":
                values = event["Properties"]
                routes[f"{values['Method'].upper()} {values['Path']}" if "Path" in values else "$default"] = logical_id
    return routes


def _compile(route: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)))


async def _read(receive: Receive) -> bytes | None:
    """The body; None where it is larger than the gateway takes."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return bytes(body)


def _own(status: int, message: str) -> Answer:
    """An answer of the gateway itself."""
    return Answer(status, {"content-type": "application/json"}, (), json.dumps({"message": message}).encode())
