"""The HTTP edge, once for every function: request ids, keys, bodies, limits, problem objects, the access log.

    @endpoint("POST", "/v1/tasks", keys=("task-producer",), body=Submit, status=201)
    async def submit(call: Call) -> Answer: ...

    app = api(submit)

A handler gets a verified, validated Call and returns JSON-able data (status 200), or an Answer. It only raises; refusals
are rendered here as application/problem+json.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, compile_path

from . import jsontext, tickets
from .address import Address
from .db import Database
from .dispatch import Api
from .errors import (
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    Problem,
    ScopeDenied,
    UnsupportedMediaType,
)
from .keys import Key, Keyring
from .settings import Settings
from .wire import Readable
from .wire.sizes import encoded_bytes, inside_json

log = logging.getLogger("interlock.http")

MAX_BODY = 5 * 1024 * 1024
MAX_CODED_BODY = 4 * 1024 * 1024  # of what the gateway sends base64-coded: a third more
MAX_EVENT_BODY = 6_000_000  # as text in the platform's event, below its 6 MiB for the whole
MAX_ANSWER = 5_500_000  # as the platform encodes it: see wire/sizes.py
_SAFE_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Answer:
    """What a handler answers when it is not plain 200 JSON."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = "application/json"


@dataclass
class Call:
    """One verified request."""

    request: Request
    database: Database
    settings: Settings
    key: Key
    body: Any = None
    value: Any = None
    text: str = ""

    def path(self, name: str) -> str:
        """A path parameter, decoded. Raises NotFound for one with U+0000: nothing stored can bear such a name."""
        text = str(self.request.path_params[name])
        if "\x00" in text:
            raise NotFound(f"there is no object with the {name} given")
        return text

    def path_id(self, name: str = "id") -> UUID:
        """A path parameter that is an id. Raises NotFound for anything else: no such object can exist."""
        try:
            text = self.path(name)
            if len(text) != 36:
                raise ValueError
            return UUID(text)
        except ValueError:
            raise NotFound(f"there is no object with the id {self.path(name)[:80]!r}") from None


@dataclass(frozen=True)
class Endpoint:
    """A handler with what the outside sees of it; `openapi` reads the same fields that the edge enforces."""

    method: str
    path: str
    keys: tuple[str, ...]
    body: type[Readable] | None
    status: int
    lenient: bool
    tickets: bool
    handle: Callable[[Call], Awaitable[Any]]

    @property
    def name(self) -> str:
        """What the handler is called: the route's name and the operation's id."""
        return self.handle.__name__

    @property
    def summary(self) -> str:
        """The handler's own sentence."""
        return (self.handle.__doc__ or "").strip()


def endpoint(
    method: str,
    path: str,
    *,
    keys: tuple[str, ...] = (),
    body: type[Readable] | None = None,
    status: int = 200,
    lenient: bool = False,
    tickets: bool = False,
) -> Callable[[Callable[[Call], Awaitable[Any]]], Endpoint]:
    """Declares an endpoint. No `keys`: open to all. `lenient`: a batch of reports, whose items are checked one by one.

    `tickets`: `?ticket=` is taken for a key.
    """

    def declare(handle: Callable[[Call], Awaitable[Any]]) -> Endpoint:
        return Endpoint(method, path, keys, body, status, lenient, tickets, handle)

    return declare


Known = Callable[[], Iterable[tuple[str, str]]]


def api(*endpoints: Endpoint, settings: Settings | None = None, elsewhere: Known | None = None) -> Starlette:
    """The application of one function. The host sets `app.state.database` before the first request.

    `elsewhere()` names the (method, path) of other functions, for the one that the gateway gives what no route takes.
    """
    app = compose([Route(e.path, _asgi(e), methods=[e.method], name=e.name) for e in endpoints], settings)
    app.state.endpoints = endpoints
    app.state.elsewhere = elsewhere
    return app


def compose(routes: Sequence[Route], settings: Settings | None = None) -> Starlette:
    """An application of routes made by `api`, so that a local host serves them all flat."""
    app = Api(routes=list(routes), exception_handlers={HTTPException: _no_route, Exception: _crashed})
    app.map_paths(routes)
    app.router.redirect_slashes = False  # a path with a slash too many is another path, on every host
    app.state.settings = settings or Settings.from_environment()
    app.state.database = None
    return app


def open_database(app: Starlette, size: int | None = None) -> Database:
    """Gives the application its database, from its settings."""
    settings: Settings = app.state.settings
    app.state.database = Database(Address(settings), size or settings.pool_size, settings.prepare_statements)
    return app.state.database  # type: ignore[no-any-return]


def _asgi(target: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        request_id = uuid4().hex
        started = time.monotonic()
        key: Key | None = None
        try:
            key = await _caller(request, target)
            call = Call(request, request.app.state.database, request.app.state.settings, key)
            if target.body is not None:
                await _read_body(call, target)
            response = _render(await target.handle(call), request_id, target.status)
        except Problem as refusal:
            response = refuse(refusal, request_id)
        except ClientDisconnect:
            response = Response(status_code=499)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("request %s failed: %s %s", request_id, target.method, target.path)
            response = refuse(Internal(), request_id)
        if log.isEnabledFor(logging.INFO):
            log.info(
                "%s %s %s %d %.1fms key=%s",
                request_id,
                target.method,
                request.url.path,
                response.status_code,
                (time.monotonic() - started) * 1000,
                key.id if key else "-",
            )
        return response

    return serve


_ANYONE = Key("", "", "", None, None, None, False)


async def _caller(request: Request, target: Endpoint) -> Key:
    if not target.keys:
        return _ANYONE
    ticket = request.query_params.get("ticket") if target.tickets and "authorization" not in request.headers else None
    if ticket is None:
        key = await verify(request)
    else:
        key = await tickets.redeem(request.app.state.database, ticket, request.url.path)
    if key.kind not in target.keys:
        raise ScopeDenied(
            f"this call needs a key of the kind {' or '.join(target.keys)}; the key given is of the kind {key.kind}",
            next=f"Use a key of the project of the kind {' or '.join(target.keys)}.",
        )
    return key


async def verify(request: Request) -> Key:
    """The key behind a request. Raises Unauthenticated or KeyRevoked."""
    state = request.app.state
    keyring: Keyring | None = getattr(state, "keyring", None)
    if keyring is None or state.keyring_of is not state.database:
        keyring = state.keyring = Keyring(state.database, state.settings.key_cache_seconds)
        state.keyring_of = state.database
    given = request.headers.getlist("authorization")
    return await keyring.verify(given[0] if len(given) == 1 and len(given[0]) <= 500 else ("" if given else None))


async def _read_body(call: Call, target: Endpoint) -> None:
    request = call.request
    _check_media_type(request)
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    # As the gateway would send it to a function, wherever this runs: what one host takes, all take.
    as_text = coding in ("", "identity") and request.headers.get("content-type", "").lower().startswith("application/json")
    limit = MAX_BODY if as_text else MAX_CODED_BODY
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes")
    if len(raw) > MAX_EVENT_BODY // 2 and as_text and inside_json(raw) > MAX_EVENT_BODY:
        raise PayloadTooLarge("the body is larger than the platform carries, as JSON inside a JSON string")
    body = _uncompressed(bytes(raw), coding)
    call.text = jsontext.text_of(body)
    assert target.body is not None
    if not call.text.strip():
        call.text = "{}"
    if target.lenient:
        value, call.text = jsontext.parse_leniently(call.text)
    else:
        value = jsontext.parse(call.text)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    call.value = value
    call.body = target.body.read(value)


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type")
    if given is None:
        return
    media_type, *parameters = (part.strip().lower() for part in given.split(";"))
    if media_type not in ("", "application/json", "text/json") and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise UnsupportedMediaType(f"the content type {media_type[:80]!r} is not supported")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaType(f"the charset {value[:40]!r} is not supported")


def _uncompressed(body: bytes, coding: str) -> bytes:
    if coding in ("", "identity"):
        return body
    if coding != "gzip":
        raise UnsupportedMediaType(f"the content encoding {coding[:40]!r} is not supported")
    stream = zlib.decompressobj(wbits=31)  # one member: a body of many empty ones would cost seconds
    try:
        found = stream.decompress(body, MAX_BODY + 1)
    except zlib.error:
        raise InvalidRequest("the body is not valid gzip") from None
    if len(found) > MAX_BODY:
        raise PayloadTooLarge(f"the body is larger than {MAX_BODY} bytes when decoded")
    if not stream.eof or stream.unused_data:
        raise InvalidRequest("the body is not one whole gzip member")
    return found


def _render(result: Any, request_id: str, status: int) -> Response:
    answer = result if isinstance(result, Answer) else Answer(result, status)
    if isinstance(answer.body, Response):
        answer.body.headers["x-request-id"] = request_id
        return answer.body
    content = answer.body.encode() if isinstance(answer.body, str) else _encode(answer.body)
    if len(content) > MAX_ANSWER // 2 and encoded_bytes(content) > MAX_ANSWER:
        raise PayloadTooLarge(
            "the answer is larger than the platform carries", next="Ask for less: a smaller limit, or fewer includes."
        )
    headers = {**_SAFE_HEADERS, **answer.headers, "x-request-id": request_id}
    return Response(content, answer.status, headers, answer.media_type)


def refuse(refusal: Problem, request_id: str) -> Response:
    """A refusal as application/problem+json."""
    headers = {**_SAFE_HEADERS, "x-request-id": request_id}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    return Response(_encode(refusal.body(request_id)), refusal.status, headers, "application/problem+json")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "") if error.status_code == 405 else ""
    if elsewhere := getattr(request.app.state, "elsewhere", None):
        allowed = _methods(request.url.path, elsewhere(), request.method) or allowed
    if allowed:
        response = refuse(MethodNotAllowed(f"{request.method} is not a method of this path"), uuid4().hex)
        response.headers["allow"] = allowed
        return response
    return refuse(
        NotFound(
            "there is no such path", next="GET /openapi.json has the paths of this service, GET /tasks.md says how to use it."
        ),
        uuid4().hex,
    )


def _methods(path: str, known: Iterable[tuple[str, str]], refused: str) -> str:
    found = {method.upper() for method, pattern in known if compile_path(pattern)[0].fullmatch(path)}
    # The gateway routes no HEAD: it ends here, where only this function's own paths can answer one.
    return ", ".join(sorted((found | {"HEAD"} if "GET" in found else found) - {refused}))


async def _crashed(_request: Request, _error: Exception) -> Response:
    return refuse(Internal(), uuid4().hex)


def flat(applications: Iterable[Starlette]) -> list[Route]:
    """All routes of several functions' applications."""
    return [route for app in applications for route in app.routes if isinstance(route, Route)]
