"""What API Gateway's HTTP API makes of a request, payload format 2.0, and of a function's answer."""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Headers = Sequence[tuple[str, str]]

# The gateway sends a body as text only where the content type is one of these and no coding is named; every other
# body, one without a content type among them, arrives base64-coded.
_TEXT_TYPES = re.compile(r"(text/.*|application/(json|javascript|xml))\s*(;.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """A function's answer as the gateway would send it on."""

    status: int
    headers: Mapping[str, str]
    cookies: Sequence[str]
    body: bytes


def make_event(
    method: str, target: str, *, route: str, headers: Headers = (), body: bytes = b"", source: str = "127.0.0.1"
) -> dict[str, Any]:
    """The event for a request of `target` (path and query as on the wire), matched by the route `METHOD /path/{name}`.

    Header names are lower-cased and repeated ones joined with a comma, `cookie` moves to a list of its own, and the
    path is the decoded one: what the gateway does, and a function must live with.
    """
    path, _, query = target.partition("?")
    path = unquote(path)
    joined: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in headers:
        lower = name.lower()
        if lower == "cookie":
            cookies.extend(part.strip() for part in value.split(";"))
        else:
            joined[lower] = f"{joined[lower]},{value}" if lower in joined else value
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route,
        "rawPath": path,
        "rawQueryString": query,
        "headers": joined,
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local",
            "domainName": joined.get("host", "localhost"),
            "domainPrefix": "local",
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": source,
                "userAgent": joined.get("user-agent", ""),
            },
            "requestId": uuid.uuid4().hex,
            "routeKey": route,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
            "timeEpoch": int(time.time() * 1000),
        },
        "pathParameters": read_path(route, path),
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if body:
        text = (
            _read_text(body)
            if _TEXT_TYPES.fullmatch(joined.get("content-type", "")) and "content-encoding" not in joined
            else None
        )
        event["isBase64Encoded"] = text is None
        event["body"] = base64.b64encode(body).decode() if text is None else text
    return event


def _read_text(body: bytes) -> str | None:
    """The body as an event can carry it; None where it is no text, whatever its type says."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def read_path(route: str, path: str) -> dict[str, str]:
    """The values of a route's path parameters in `path`; empty if the path is not the route's."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(route.partition(" ")[2]))
    found = re.fullmatch(pattern, path)
    return found.groupdict() if found else {}


def read_answer(result: Any) -> Answer:
    """What the gateway answers for a handler's result: a result that is no HTTP answer becomes its bare 500."""
    if not isinstance(result, dict) or "statusCode" not in result:
        return Answer(500, {"content-type": "application/json"}, (), b'{"message":"Internal Server Error"}')
    body = result.get("body") or ""
    raw = base64.b64decode(body) if result.get("isBase64Encoded") else body.encode()
    headers = {name.lower(): str(value) for name, value in (result.get("headers") or {}).items()}
    return Answer(int(result["statusCode"]), headers, tuple(result.get("cookies") or ()), raw)
