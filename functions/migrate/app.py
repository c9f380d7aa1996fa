"""Brings the database up to date at a deployment, as CloudFormation's custom resource, or called by hand with `{}`. Called with
`{"keysFor": "project"}` it makes a project's first keys: whoever may call it is trusted by the account already.

The resource carries the hash of the migrations that its deployment means (`Hash`). An update back to an old hash (a roll-back)
changes nothing and succeeds: the schema only grows, and what a release no longer needs is dropped by a later one. `Delete`
drops nothing. Whatever happens, CloudFormation is answered: it would wait for an hour.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from interlock_core.address import Address
from interlock_core.db import Database
from interlock_core.errors import InvalidRequest, Unavailable
from interlock_core.keys import bootstrap
from interlock_core.migrate import Connection, Unreachable, hash_folder, hashes_until, migrate
from interlock_core.settings import Settings
from interlock_core.wire.operator import NewProject

log = logging.getLogger("interlock.migrate")

FOLDER = Path(__file__).parent / "migrations"
# One name for ever: a resource that got another one would be deleted under the old one.
RESOURCE = "interlock-schema"
#: Left of the function's time for the answer.
RESERVE_SECONDS = 20.0
ANSWER_SECONDS, ANSWER_TRIES = 10.0, 3
REASON_BYTES = 1000
STOP_SECONDS = 8.0


async def run(database: Database, _settings: Settings) -> dict[str, Any]:
    """Applies what is new; returns the names of the migrations that this call applied."""
    return {"applied": await asyncio.to_thread(migrate, await database.address.find(), FOLDER)}


def _project(name: Any) -> str:
    try:
        return NewProject.read({"name": name}).name
    except InvalidRequest as refusal:
        raise ValueError(f"keysFor is no project's name: {refusal.detail}") from None


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The Lambda entry point."""
    if "RequestType" not in event:
        if set(event) - {"keysFor"}:
            raise ValueError(f'{sorted(event)} is not understood: {{}} migrates, {{"keysFor": "project"}} makes first keys')
        if not event:
            return {"applied": _migrate(context)}
        return {"keys": asyncio.run(_make_keys(_project(event["keysFor"])))}
    try:
        status, told = "SUCCESS", _follow(event, context)
    except Exception as error:
        log.exception("the migration failed")
        status, told = "FAILED", f"{type(error).__name__}: {error}"
    told = _cut(told)
    answer = {
        "Status": status,
        "Reason": told,
        "PhysicalResourceId": event.get("PhysicalResourceId") or RESOURCE,
        **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
        "Data": {"Told": told},
    }
    _send(event["ResponseURL"], json.dumps(answer, ensure_ascii=False).encode())
    return {"status": status, "told": told}


def _cut(text: str) -> str:
    """The beginning of a text: CloudFormation takes an answer of 4,096 bytes, and this stands in it twice."""
    while len(json.dumps(text, ensure_ascii=False).encode()) > REASON_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


async def _make_keys(project: str) -> dict[str, str]:
    database = Database(Address(Settings.from_environment()))
    try:
        return await bootstrap(database, project, {})
    finally:
        await database.close()


def _follow(event: dict[str, Any], context: Any) -> str:
    """Does what the event asks for and says what was done; raises what went wrong."""
    if event["RequestType"] == "Delete":
        return "nothing is dropped"
    ours, wanted = hash_folder(FOLDER), event["ResourceProperties"].get("Hash", "")
    if wanted != ours:
        if event["RequestType"] == "Update" and event.get("OldResourceProperties", {}).get("Hash", "") == ours:
            return "a roll-back: the schema stays as it is"
        raise ValueError(
            f"the deployment means migrations {wanted[:12]}…, and this function carries {ours[:12]}…; build and deploy both"
        )
    try:
        applied = _migrate(context)
    except (Unreachable, Unavailable):
        # The code went back before its resource does. From a state that it does not know it comes back from a newer one: there
        # is nothing to apply, and a stack that cannot go back because its database is away would be stuck.
        before = event.get("OldResourceProperties", {}).get("Hash", "")
        if event["RequestType"] != "Update" or before in hashes_until(FOLDER):
            raise
        log.warning("the database could not be asked in a roll-back", exc_info=True)
        return "a roll-back: the schema stays as it is; the database could not be asked"
    return f"applied {', '.join(applied)}" if applied else "up to date"


def _migrate(context: Any) -> list[str]:
    """Raises TimeoutError where the function's time ends before the work does: that is undone, or resumed by the next run."""
    found: list[list[str]] = []
    failed: list[BaseException] = []
    sessions: list[Connection] = []
    ended = threading.Event()

    def pause(seconds: float) -> None:
        if ended.wait(seconds):
            raise TimeoutError

    def work() -> None:
        try:
            found.append(migrate(Address(Settings.from_environment()).find_now(), FOLDER, sessions.append, pause))
        except BaseException as error:  # told to the thread that waits
            failed.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    left = context.get_remaining_time_in_millis() / 1000 if context is not None else 900.0
    worker.join(max(left - RESERVE_SECONDS, 1.0))
    if worker.is_alive():
        ended.set()
        until = time.monotonic() + STOP_SECONDS
        # Again and again: what comes between two statements is not met. Nothing may go on in an environment that is then frozen.
        while worker.is_alive() and time.monotonic() < until:
            for session in sessions:
                session.cancel_safe(timeout=STOP_SECONDS / 4)
            worker.join(0.5)
        raise TimeoutError(
            "the migrations need more time than a function has; run `python -m interlock_core.migrate migrations` from a machine"
        )
    if failed:
        raise failed[0]
    return found[0]


def _send(url: str, body: bytes) -> None:
    """Answers CloudFormation at the address that it gave. Raises OSError where that cannot be reached."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    for tried in range(ANSWER_TRIES):
        connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
        try:
            # Its signature covers an empty content type.
            connection.request("PUT", f"{parts.path}?{parts.query}", body, {"content-type": "", "content-length": str(len(body))})
            if connection.getresponse().status < 300:
                return
            raise OSError("the answer was refused")
        except (OSError, http.client.HTTPException):
            if tried == ANSWER_TRIES - 1:
                raise
            time.sleep(1)
        finally:
            connection.close()
