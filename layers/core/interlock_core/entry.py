"""The entry points of functions: what the platform calls.

A function's last lines are `app = api(…)` and `handler = lambda_handler(app)`.
"""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette

from .address import Address
from .db import Database
from .errors import InvalidRequest
from .http import open_database, refuse
from .settings import Settings

LARGE = 500_000
"""Characters of an answer from which on it matters how the platform encodes it: its limit is twelve times that."""


def lambda_handler(app: Starlette) -> Callable[[dict[str, Any], Any], Any]:
    """The Lambda entry point: one event loop and one lazily made connection for the life of the execution environment."""
    from mangum import Mangum  # noqa: PLC0415  # a local host never needs it

    adapters: list[Mangum] = []

    def handle(event: dict[str, Any], context: Any) -> Any:
        _enter_loop()  # first: Mangum makes a loop of its own where there is none
        if not adapters:
            adapters.append(Mangum(app, lifespan="off"))
        if app.state.database is None:
            open_database(app, 1)
        try:
            return _carried(adapters[0](_decoded_once(event), context))
        except (ValueError, UnicodeError) as error:  # a body that says base64 and is not
            if not event.get("isBase64Encoded"):
                raise
            refused = refuse(InvalidRequest(f"the body is not valid base64: {type(error).__name__}"), uuid4().hex)
            headers = {name.decode(): value.decode() for name, value in refused.raw_headers}
            return {"statusCode": 400, "headers": headers, "body": bytes(refused.body).decode(), "isBase64Encoded": False}

    return handle


_loop: list[asyncio.AbstractEventLoop] = []


def _enter_loop() -> asyncio.AbstractEventLoop:
    """The one event loop of an execution environment, made at its first event: its connection belongs to it."""
    if not _loop:
        # What was imported stays: a collection of all of it would now and then hold up a call for longer than the call takes.
        gc.freeze()
        _loop.append(asyncio.new_event_loop())
    asyncio.set_event_loop(_loop[0])
    return _loop[0]


def scheduled_handler(run: Callable[[Database, Settings], Awaitable[dict[str, Any]]]) -> Callable[[dict[str, Any], Any], Any]:
    """The Lambda entry point of a scheduled function; its answer says what it did."""
    settings = Settings.from_environment()
    database: list[Database] = []

    def handle(_event: dict[str, Any], _context: Any) -> Any:
        loop = _enter_loop()
        if not database:
            database.append(Database(Address(settings), 1, settings.prepare_statements))
        return loop.run_until_complete(run(database[0], settings))

    return handle


def _decoded_once(event: dict[str, Any]) -> dict[str, Any]:
    """The event, its path written so that Mangum's decoding gives it back: the gateway has decoded it already."""
    request = event.get("requestContext") or {}
    path = (request.get("http") or {}).get("path") or ""
    if event.get("version") != "2.0" or "%" not in path:
        return event
    return event | {"requestContext": request | {"http": request["http"] | {"path": path.replace("%", "%25")}}}


def _carried(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, large text as base64 where it is not ASCII: an older runtime writes each such character as six or twelve."""
    body = answer.get("body")
    if isinstance(body, str) and len(body) > LARGE and not body.isascii():
        return answer | {"body": base64.b64encode(body.encode()).decode(), "isBase64Encoded": True}
    return answer
