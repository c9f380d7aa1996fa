"""What a caller asks of a stream (protocol.md §9). Of a worker's, unknown parameters are ignored: boxes upgrade by themselves."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from .fields import Identifier, PathName, Tolerant
from .rules import TYPE

_VERSION = re.compile(r"[1-9][0-9]{0,9}")


def _versioned(value: str) -> str:
    name, _, version = value.rpartition("@")
    if TYPE.fullmatch(name) is None or _VERSION.fullmatch(version) is None or int(version) > 2_147_483_647:
        raise PydanticCustomError("versioned_type", "must be group/name@version, such as demo/hello@1")
    return value


class Subscription(Tolerant):
    """Who listens, and for work of which types."""

    worker_id: PathName
    instance_id: Identifier
    pool: Identifier = "default"
    types: Annotated[list[Annotated[str, AfterValidator(_versioned)]], Field(min_length=1, max_length=200)]

    @property
    def names(self) -> list[str]:
        """The types without their versions."""
        return [name.rpartition("@")[0] for name in self.types]


def subscription(request: Request) -> Subscription:
    """The query of a stream. Raises InvalidRequest naming the parameter."""
    given: dict[str, object] = {name: value for name, value in request.query_params.items() if name != "types"}
    if types := request.query_params.getlist("types"):
        given["types"] = list(dict.fromkeys(part.strip() for text in types for part in text.split(",") if part.strip()))
    return Subscription.read(given)


def resume_after(event_id: str, last: int) -> tuple[int, bool]:
    """From a `Last-Event-ID`, and the last seq of the journal: after which seq to go on, and whether to begin anew with `reset`.

    An id that is ahead of the journal (it was set back with its database), another stream's, or no id at all is never an error:
    its reader is told everything again.
    """
    if not event_id:
        return 0, False
    if event_id.isascii() and event_id.isdigit() and len(event_id) <= 10 and int(event_id) <= last:
        return int(event_id), False
    return 0, True
