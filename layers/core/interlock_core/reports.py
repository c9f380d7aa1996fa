"""Reading reports leniently (protocol.md §1, §5): text never makes a report fail, a broken value concerns its own item."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec

from . import canonical, jsontext
from .errors import EpochChanged, InvalidJson, InvalidRequest, Problem, StaleAttempt
from .wire import Readable
from .wire.rules import INLINE_BYTES, TEXT_BYTES

MARK = "…[truncated]"
_encode = msgspec.json.Encoder().encode


class Report(Readable, Protocol):
    """What reads a report, and what every report carries: which attempt it is of, and the proof of being the current one."""

    fence: int
    lease_token: str

    @property
    def task_id(self) -> UUID:
        """Of which task."""
        ...

    @property
    def attempt_id(self) -> UUID:
        """Of which attempt."""
        ...


@dataclass(frozen=True)
class Item:
    """One item of a batch: its model, or why it could not be read."""

    attempt_id: Any
    model: Any
    text: dict[str, str]
    refusal: Problem | None = None


def items(model: type[Report], values: list[Any], body_text: str, member: str) -> list[Item]:
    """The items of a batch, each validated by itself and with the raw text of its members."""
    texts = jsontext.elements(jsontext.members(body_text)[member]) if values else []
    return [item(model, value, text, f"/{member}/{index}") for index, (value, text) in enumerate(zip(values, texts, strict=True))]


def item(model: type[Report], value: Any, text: str, pointer: str) -> Item:
    """One item; what is wrong with it is told at `pointer`."""
    if not isinstance(value, dict):
        return Item(None, None, {}, InvalidRequest("the item must be a JSON object", pointer))
    given = value.get("attemptId")
    shown = jsontext.clean(given)[:255] if isinstance(given, str) else None
    twice = jsontext.doubled(value, pointer) or jsontext.doubled(value.get("wait"), f"{pointer}/wait")
    if twice is not None:  # a result in which one does ends its task, and texts are taken as they come
        return Item(shown, None, {}, twice)
    try:
        return Item(shown, model.read(value, pointer), jsontext.members(text))
    except InvalidRequest as refusal:
        return Item(shown, None, {}, refusal)


def token(lease_token: str) -> tuple[int, str]:
    """(epoch, SHA-256 in hex) of a lease token; an unreadable one has epoch -1 and fits nothing."""
    epoch, _, secret = lease_token.partition(".")
    number = int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 9 else -1
    return number, hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def fence(ids: Report) -> dict[str, Any]:
    """What a report proves itself with, as statements take it."""
    epoch, digest = token(ids.lease_token)
    return {"task_id": ids.task_id, "attempt_id": ids.attempt_id, "fence": ids.fence, "token": digest, "epoch": epoch}


def not_current(verdict: Any, epoch: int) -> Problem:
    """Why the report of an attempt is not taken, from what `complete.explain` found; `epoch` is its token's."""
    if verdict.found and verdict.other_epoch and epoch >= 0:
        return EpochChanged(f"the lease token was given in epoch {epoch}")
    if not verdict.found:
        return StaleAttempt("there is no such task any more")
    if verdict.ended_by is not None:
        return StaleAttempt(f"the attempt was ended ({verdict.ended_by}); the task is {verdict.status}")
    return StaleAttempt(
        f"attempt, fence and token together are not those of the task's current attempt; the task is {verdict.status}"
    )


def cut(value: Any, limit: int = TEXT_BYTES) -> str:
    """Text as it is stored: cleaned, and cut to `limit` bytes with a mark where it was longer."""
    text = jsontext.clean(value if isinstance(value, str) else _json(value) if value is not None else "")
    coded = text.encode()
    if len(coded) <= limit:
        return text
    return coded[: limit - len(MARK.encode())].decode(errors="ignore") + MARK


def _json(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate inside
        return clean_json(value)


def error_of(value: Any) -> tuple[str, str, str | None]:
    """(code, message, details as JSON text) of a report's error, whatever was sent."""
    if not isinstance(value, dict):
        return "FAILED", cut(value) or "the handler gave no message", None
    code = cut(value.get("code"), 255).strip() or "FAILED"
    details = None
    if value.get("details") is not None:
        details = clean_json(value["details"])
        if len(details) > TEXT_BYTES:
            details = _encode({"truncated": details[: TEXT_BYTES // 4] + MARK}).decode()
    return code, cut(value.get("message")) or code, details


def clean_json(value: Any) -> str:
    """JSON text of a value in which unstorable characters and numbers were replaced."""
    return _encode(_cleaned(value, 0)).decode()


def _cleaned(value: Any, depth: int) -> Any:
    if depth > jsontext.MAX_DEPTH - 4:
        return MARK
    if isinstance(value, str):
        return jsontext.clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, dict):
        return {jsontext.clean(str(k)): _cleaned(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v, depth + 1) for v in value]
    return value


def result_of(text: str | None) -> tuple[str | None, tuple[str, str] | None]:
    """(the result's text, None), or (None, (code, message)) where it breaks a size or value rule: that ends the task."""
    if text is None:
        return "null", None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return None, ("RESULT_NOT_STORABLE", "the result holds a lone surrogate")
    if size > INLINE_BYTES:
        return None, (
            "RESULT_TOO_LARGE",
            f"the result has {size} bytes, more than the {INLINE_BYTES} that fit; send large bytes by reference",
        )
    try:
        jsontext.parse(text, "/result")
    except InvalidJson as error:
        return None, ("RESULT_NOT_STORABLE", f"{error.detail} (at {error.extra['errors'][0]['pointer']})")
    return text, None


def names_of(value: Any) -> list[str] | None:
    """The readable step names of a report, or None where there are none."""
    names = [cut(name, 255) for name in value if isinstance(name, str)] if isinstance(value, list) else []
    return names[:1000] or None


def report_hash(kind: str, parts: dict[str, Any]) -> str:
    """SHA-256 in hex of a report's canonical form, by which a repeat is known from another report."""
    fields = {"kind": canonical.write(kind)} | {
        name: value if isinstance(value, str) else canonical.write(value) for name, value in parts.items()
    }
    return canonical.fingerprint(fields)[0].hex()


def log_lines(value: Any) -> list[dict[str, Any]]:
    """The readable lines of a report's logs, cut and cleaned, in the order of their seq."""
    lines = []
    for line in value if isinstance(value, list) else []:
        if (
            not isinstance(line, dict)
            or not isinstance(line.get("seq"), int)
            or isinstance(line["seq"], bool)
            or not 0 < line["seq"] < 2**62
        ):
            continue
        kept: dict[str, Any] = {
            "seq": line["seq"],
            "level": cut(line.get("level") or "info", 32),
            "message": cut(line.get("message")),
        }
        if isinstance(line.get("at"), str):
            kept["at"] = cut(line["at"], 64)
        if isinstance(line.get("fields"), dict) and line["fields"]:
            fields = clean_json(line["fields"])
            kept["fields"] = msgspec.Raw(fields.encode()) if len(fields) <= TEXT_BYTES else {"truncated": MARK}
        lines.append(kept)
    return sorted(lines, key=lambda line: line["seq"])


def progress_of(value: Any) -> str | None:
    """{"percent", "message"} of a report's progress as JSON text, or None where it says nothing."""
    if not isinstance(value, dict):
        return None
    kept: dict[str, Any] = {}
    percent = value.get("percent")
    if isinstance(percent, int | float) and not isinstance(percent, bool) and 0 <= percent <= 100:
        kept["percent"] = percent
    if value.get("message") is not None:
        kept["message"] = cut(value["message"])
    return _encode(kept).decode() if kept else None
