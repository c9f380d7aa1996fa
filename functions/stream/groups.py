"""Who serves what: one group per (project, pool, type@version) of the connected workers, and whom to wake for work of it.

n tasks wake n streams, not the fleet, in turn. A worker without a free slot ignores a wake and nobody says so; so work that
stays claimable is offered to further ones, more of them each time (see timetable.py).
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connection import Connection

Name = tuple[str, str, str]  # project, pool, type@version


class Group:
    """The streams that serve one type@version of one pool, and when to look at its tasks again (loop time)."""

    __slots__ = (
        "frame",
        "full_look_at",
        "lapsed",
        "members",
        "misses",
        "name",
        "pool",
        "project",
        "quoted",
        "ready_look_at",
        "type",
        "version",
    )

    def __init__(self, project: str, pool: str, name: str, now: float) -> None:
        self.project = project
        self.pool = pool
        self.name = name
        self.type, _, version = name.rpartition("@")
        self.version = int(version)
        self.quoted = json.dumps(name).encode()
        self.frame = wake_frame((self,))  # made once: mostly a stream is woken for one type alone
        self.members: OrderedDict[Connection, None] = OrderedDict()
        self.full_look_at = now  # at everything: ready work, the next due instant, leases
        self.ready_look_at = math.inf  # at ready work only
        self.lapsed = False  # the last look met lapsed leases: the quick one looks at them too
        self.misses = 0  # looks in a row that found work which nobody took

    def wake(self, count: int, now: float) -> None:
        """Wakes up to `count` streams in turn; those seen full lately only where the others do not suffice."""
        chosen: list[Connection] = []
        full: list[Connection] = []
        for connection in self.members:
            if len(chosen) >= count or len(full) >= 200:  # the search for a free one among many has a bound
                break
            (full if connection.full_until > now else chosen).append(connection)
        for connection in chosen + full:
            self.members.move_to_end(connection)
        for connection in chosen + full[: count - len(chosen)]:
            connection.wake((self,))


class Groups:
    """All groups that have a stream."""

    def __init__(self) -> None:
        self._found: dict[Name, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def get(self, name: Name) -> Group | None:
        """The group, if a stream serves it."""
        return self._found.get(name)

    def enter(self, name: Name, now: float) -> Group:
        """The group, made where this is its first stream."""
        group = self._found.get(name)
        if group is None:
            group = self._found[name] = Group(*name, now)
        return group

    def of_project(self, project: str) -> list[Group]:
        """The groups of one project."""
        return [group for group in self if group.project == project]

    def leave(self, group: Group, connection: Connection) -> None:
        """Takes a stream out; a group without streams is forgotten."""
        group.members.pop(connection, None)
        if not group.members:
            self._found.pop((group.project, group.pool, group.name), None)


def wake_frame(groups: Iterable[Group]) -> bytes:
    """The wake of these groups."""
    return b'event: wake\ndata: {"types":[' + b",".join(group.quoted for group in groups) + b"]}\n\n"
