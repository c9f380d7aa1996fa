"""Keys: who is calling, and what they may do (protocol.md §2).

A key is `il_<kind letter>_<id>_<secret>`: found by its id, its 256-bit secret compared in constant time with the stored
SHA-256. Good verdicts are remembered for `KEY_CACHE_SECONDS` in one process, bad ones never, so that a revocation works
within seconds and a new key at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import string
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .canonical import write
from .db import Database, Refused, statements
from .errors import IdempotencyConflict, InvalidRequest, KeyRevoked, NotFound, ScopeDenied, Unauthenticated
from .ids import new_id
from .wire.times import when

if TYPE_CHECKING:  # every function verifies keys, and one makes any
    from .wire.operator import Rotate

LETTERS = {"task-producer": "p", "task-worker": "w", "operator": "o", "metrics": "m", "admin": "a"}
KINDS = tuple(LETTERS)
_FORM = re.compile(r"il_[pwoma]_([A-Za-z0-9]{16})_([A-Za-z0-9_-]{43})")
_CACHE_SIZE = 10_000
_NAMED_BY_ID = "Name the key by its id, not its name or its secret: GET /v1/keys and `interlock keys list` show it."
_OF_TYPES = string.ascii_letters + string.digits + "._-/"  # what the names of types consist of

sql = statements("keys")


@dataclass(frozen=True)
class Key:
    """A verified caller."""

    id: str
    project: str
    kind: str
    types: tuple[str, ...] | None
    pools: tuple[str, ...] | None
    worker_ids: tuple[str, ...] | None
    may_schedule: bool
    rated: bool = False  # its project limits submits

    @property
    def narrowed(self) -> bool:
        """Whether it may less than its kind."""
        return not (self.types is None and self.pools is None and self.worker_ids is None)

    def check_worker(self, worker_id: str | None, pool: str | None, types: list[str]) -> None:
        """Raises ScopeDenied for a worker id, pool or type (None: the call names none) outside the narrowing of this key."""
        if self.worker_ids is not None and worker_id is not None and worker_id not in self.worker_ids:
            raise ScopeDenied(f"the key is narrowed to the worker ids {', '.join(self.worker_ids)}; the call is for {worker_id}")
        if self.pools is not None and pool is not None and pool not in self.pools:
            raise ScopeDenied(f"the key is narrowed to the pools {', '.join(self.pools)}; the call is for {pool}")
        for name in types:
            if not self.allows_type(name):
                raise ScopeDenied(f"the key is narrowed to the types {', '.join(self.types or ())}; the call names {name}")

    def allows_type(self, name: str) -> bool:
        """Whether the narrowing of this key includes the type."""
        return self.types is None or any(fnmatchcase(name, pattern) for pattern in self.types)

    @cached_property
    def scope(self) -> str | None:
        """What a statement compares `type`, `pool` and `worker_id` of a task with, joined by line ends: a regular expression.

        None for a key that is not narrowed. So a report is judged by the row that it would change, without a look before it.
        """
        if not self.narrowed:
            return None
        types = ["[^\n]*"] if self.types is None else [_expression(pattern) for pattern in self.types]
        pools, workers = (
            ["[^\n]*"] if names is None else [_literally(n) for n in names] for names in (self.pools, self.worker_ids)
        )
        return "^" + "\n".join(f"(?:{'|'.join(part)})" for part in (types, pools, workers)) + "$"

    def outside(self, task_type: str, pool: str, worker_id: str | None) -> ScopeDenied | None:
        """Why a report of an attempt of these is outside the narrowing of this key, if it is: in Python what `scope` is in SQL."""
        try:
            self.check_worker(worker_id, pool, [task_type])
        except ScopeDenied as refusal:
            return ScopeDenied(
                refusal.detail, next="Report this attempt with a worker key that includes it: its lease is as it was."
            )
        return None


def _literally(name: str) -> str:
    return re.sub(r"([^0-9A-Za-z\u0080-\U0010ffff])", r"\\\1", name)


def _expression(pattern: str) -> str:
    """The regular expression of a glob, in what `re` and Postgres have in common."""
    found: list[str] = []
    for piece in re.findall(r"\[!?\]?[^\]]*\]|.", pattern):
        if piece == "*":
            found += [] if found[-1:] == ["[^\n]*"] else ["[^\n]*"]
        elif piece == "?":
            found.append("[^\n]")
        elif len(piece) > 1:  # a set: spelled out, since ranges and classes are read differently
            members = "".join(_literally(c) for c in _OF_TYPES if fnmatchcase(c, piece))
            found.append(f"[{members}]" if members else "\n\n")  # matches nothing
        else:
            found.append(_literally(piece))
    return "".join(found)


class Keyring:
    """Verifies keys against one database, remembering good verdicts for a few seconds."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._good: dict[str, tuple[float, Key]] = {}
        self._asking: dict[str, asyncio.Future[Key]] = {}

    async def verify(self, header: str | None) -> Key:
        """The caller behind an Authorization header. Raises Unauthenticated or KeyRevoked; never echoes the header."""
        if header is None:
            raise Unauthenticated("the request has no Authorization header")
        scheme, _, token = header.partition(" ")
        match = _FORM.fullmatch(token.strip()) if scheme.lower() == "bearer" else None
        if match is None:
            raise Unauthenticated("the Authorization header does not hold an Interlock key")
        now = time.monotonic()
        found = self._good.get(token)
        if found is not None and found[0] > now:
            return found[1]
        # Calls with one key that come together ask once: a fleet that reconnects would else queue for the database.
        asking = self._asking.get(token)
        if asking is None:
            asking = self._asking[token] = asyncio.ensure_future(self._look_up(match.group(1), match.group(2)))
            asking.add_done_callback(lambda _: self._asking.pop(token, None))
        key = await asyncio.shield(asking)
        if self._seconds > 0:
            if len(self._good) >= _CACHE_SIZE:
                self._good.clear()
            self._good[token] = (now + self._seconds, key)
        return key

    async def _look_up(self, key_id: str, secret: str) -> Key:
        rows = await self._database.one(sql.find(id=key_id))
        row = rows[0] if rows else None
        # the same work for an unknown id as for a known one
        stored = bytes(row.secret_hash) if row is not None else bytes(32)
        matches = hmac.compare_digest(stored, hashlib.sha256(secret.encode()).digest())
        if row is None or not matches:
            raise Unauthenticated("the key is not known to this service")
        if row.revoked:
            raise KeyRevoked
        if row.expired:
            raise Unauthenticated("the key has expired")
        return Key(
            id=row.id,
            project=row.project or "",
            kind=row.kind,
            types=tuple(row.types) if row.types is not None else None,
            pools=tuple(row.pools) if row.pools is not None else None,
            worker_ids=tuple(row.worker_ids) if row.worker_ids is not None else None,
            may_schedule=row.may_schedule,
            rated=row.rated,
        )


def _make(kind: str) -> tuple[str, str, bytes]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    key_id = "".join(secrets.choice(alphabet) for _ in range(16))
    secret = secrets.token_urlsafe(32)
    return key_id, f"il_{LETTERS[kind]}_{key_id}_{secret}", hashlib.sha256(secret.encode()).digest()


async def create(database: Database, caller: Key, request: Any) -> dict[str, Any]:
    """Makes a key (POST /v1/keys) and shows it once; a repeated idempotencyKey answers the first one without its secret.

    Raises ScopeDenied where the caller may not mint that kind, NotFound for an unknown project, IdempotencyConflict, and
    InvalidRequest for a narrowing that the kind does not obey: a limit that is stored and not kept is worse than none.
    """
    _check_narrowing(request)
    if caller.kind == "admin":
        if request.kind != "admin" and request.project is None:
            raise InvalidRequest("an admin key names the project of the new key", "/project")
        if request.kind == "admin" and request.project is not None:
            raise InvalidRequest("an admin key belongs to no project", "/project")
    elif request.kind == "admin":
        raise ScopeDenied("an operator may mint any kind of key but admin")
    elif request.project not in (None, caller.project):
        raise NotFound(f"there is no project {request.project}")
    project = None if request.kind == "admin" else (request.project or caller.project)
    return await mint(database, request, project, caller.id)


def _check_narrowing(request: Any) -> None:
    obeyed = {"task-worker": ("types", "pools", "worker_ids", "may_schedule"), "task-producer": ("types",)}.get(request.kind, ())
    for name, wire in (("types", "types"), ("pools", "pools"), ("worker_ids", "workerIds"), ("may_schedule", "maySchedule")):
        if getattr(request, name) is not None and name not in obeyed:
            raise InvalidRequest(f"a {request.kind} key cannot be narrowed by {wire}", f"/{wire}")


async def mint(database: Database, request: Any, project: str | None, created_by: str | None) -> dict[str, Any]:
    """Inserts one key; see `create` for who may ask."""
    key_id, key, secret_hash = _make(request.kind)
    body = request.model_dump(exclude={"idempotency_key"}, mode="json", exclude_defaults=True)
    request_hash = hashlib.sha256(write({**body, "project": project or ""}).encode()).digest()
    try:
        rows = await database.one(
            sql.insert(
                id=key_id,
                project=project,
                kind=request.kind,
                name=request.name,
                secret_hash=secret_hash,
                types=request.types,
                pools=request.pools,
                worker_ids=request.worker_ids,
                may_schedule=bool(request.may_schedule),
                idempotency_key=request.idempotency_key,
                request_hash=request_hash,
                created_by=created_by,
                expires_at=request.expires_at,
                audit_id=new_id(),
            )
        )
    except Refused:
        raise NotFound(f"there is no project {project}") from None
    if rows:
        return {**_view(rows[0]), "key": key, "duplicate": False}
    (row,) = await _made_before(database, project, request.idempotency_key)
    return _told_again(row, request_hash)


def _view(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "project": row.project,
        "types": row.types,
        "pools": row.pools,
        "workerIds": row.worker_ids,
        "maySchedule": row.may_schedule,
        "createdAt": when(row.created_at),
        "expiresAt": when(row.expires_at),
        "revokedAt": when(row.revoked_at),
    }


async def find_all(database: Database, project: str, after: list[Any] | None, limit: int) -> list[Any]:
    """Keys of a project, newest first, one more than `limit` if there are more."""
    return await database.one(
        sql.list(project=project, after_at=after[0] if after else None, after_id=after[1] if after else None, limit=limit + 1)
    )


def view(row: Any) -> dict[str, Any]:
    """A key as it is listed: never its secret."""
    return _view(row)


async def revoke(database: Database, caller: Key, key_id: str) -> dict[str, Any]:
    """Revokes a key of the caller's project; again → duplicate. Raises NotFound."""
    rows = await database.one(sql.revoke(id=key_id, project=caller.project, by=caller.id, audit_id=new_id()))
    if not rows:
        raise NotFound(f"there is no key {key_id} in this project", next=_NAMED_BY_ID)
    return {**_view(rows[0]), "duplicate": not rows[0].changed}


async def rotate(database: Database, caller: Key, key_id: str, request: Rotate) -> dict[str, Any]:
    """A new key with the rights of the old one, which lives on for `overlap_seconds` at most.

    A repeated idempotencyKey answers the first new key without its secret. Raises NotFound, KeyRevoked, IdempotencyConflict, and
    InvalidRequest for a key that has expired: what has ended does not come back.
    """
    found = await database.one(sql.find(id=key_id))
    if not found or found[0].project != caller.project:
        raise NotFound(f"there is no key {key_id} in this project", next=_NAMED_BY_ID)
    new_key_id, key, secret_hash = _make(found[0].kind)
    request_hash = hashlib.sha256(write({"rotate": key_id, "overlapSeconds": request.overlap_seconds}).encode()).digest()
    try:
        rows = await database.one(
            sql.rotate(
                id=key_id,
                project=caller.project,
                new_id=new_key_id,
                secret_hash=secret_hash,
                idempotency_key=request.idempotency_key,
                request_hash=request_hash,
                by=caller.id,
                overlap_seconds=request.overlap_seconds,
                audit_id=new_id(),
            )
        )
    except Refused as refused:
        if made := await _made_before(database, caller.project, request.idempotency_key):
            return _told_again(made[0], request_hash)
        if str(refused) == "REVOKED":
            raise KeyRevoked(f"the key {key_id} was revoked; a rotation would bring it back") from None
        advice = "Make a new key: POST /v1/keys."
        raise InvalidRequest(f"the key {key_id} has expired; a rotation would bring it back", next=advice) from None
    if rows:
        return {**_view(rows[0]), "key": key, "duplicate": False}
    (row,) = await _made_before(database, caller.project, request.idempotency_key)
    return _told_again(row, request_hash)


async def _made_before(database: Database, project: str | None, idempotency_key: str | None) -> list[Any]:
    """The one key that this idempotency key has made, or none."""
    return await database.one(sql.find_by_idempotency_key(project=project or "", idempotency_key=idempotency_key))


def _told_again(row: Any, request_hash: bytes) -> dict[str, Any]:
    if bytes(row.request_hash) != request_hash:
        raise IdempotencyConflict(f"the idempotency key made key {row.id} from another request")
    return {**_view(row), "duplicate": True}


async def create_project(
    database: Database, caller_id: str | None, name: str, idempotency_key: str | None, require_worker: str | None
) -> dict[str, Any]:
    """Makes a project (admin). The same name again is a duplicate, whatever the key.

    Raises IdempotencyConflict where the key made another project, or the project has another default for requireWorker.
    """
    rows = await database.one(
        sql.insert_project(
            name=name, idempotency_key=idempotency_key, require_worker=require_worker, by=caller_id, audit_id=new_id()
        )
    )
    row = rows[0] if rows else (await database.one(sql.find_project(name=name, idempotency_key=idempotency_key)))[0]
    if row.name != name:
        raise IdempotencyConflict(f"the idempotency key made the project {row.name}")
    if require_worker not in (None, row.require_worker):
        raise IdempotencyConflict(f"the project {name} exists with requireWorker {row.require_worker or 'unset'}")
    return {**_project(row), "duplicate": not rows}


async def projects(database: Database, after: str | None, limit: int) -> list[dict[str, Any]]:
    """Projects by name (admin), one more than `limit` if there are more."""
    return [_project(row) for row in await database.one(sql.projects(after=after, limit=limit + 1))]


def _project(row: Any) -> dict[str, Any]:
    return {"name": row.name, "createdAt": when(row.created_at), "requireWorker": row.require_worker}


async def bootstrap(database: Database, project: str, stored: dict[str, str]) -> dict[str, str]:
    """For a local host: the project, and one working key of each kind; keys of `stored` that still work are kept."""
    from .wire.operator import NewKey  # noqa: PLC0415

    await create_project(database, None, project, None, None)
    keyring = Keyring(database, 0)
    found = {}
    for kind in KINDS:
        try:
            key = await keyring.verify(f"Bearer {stored.get(kind, '')}")
            if key.kind == kind and key.project == ("" if kind == "admin" else project):
                found[kind] = stored[kind]
                continue
        except (Unauthenticated, KeyRevoked):
            pass
        request = NewKey.model_validate({"name": f"local {kind}", "kind": kind})
        found[kind] = (await mint(database, request, None if kind == "admin" else project, None))["key"]
    return found
