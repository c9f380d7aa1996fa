"""When a schedule is due: pure arithmetic over cron expressions, intervals and time zones (protocol.md §8).

A cron expression is matched against the local time of its zone, by one of two rules:

    hours are fixed (`30 2 * * *`)     each local time that matches fires once: one that a change of the clock leaps over at
                                       the first valid instant after the gap, one that occurs twice the first time
    hours start with `*` (`0 */2 * …`) elapsed time: every instant fires whose local time matches, so both of two equal local
                                       times, and none that does not exist

`cronsim` reads the expression and walks through plain local times; what a local time means in a zone is decided here, since
zones that change by half an hour or at midnight need it exact. Instants are aware datetimes in UTC.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MOST_DUE = 1000  # instants that one catch-up fires
MOST_COUNTED = 20_000  # instants that are looked at to say how many were missed
END = datetime(9000, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"
_NUMBER = "[0-9]{1,2}"
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
#: Names that some systems keep beside the zones: other clocks, or whatever the machine is set to.
_NO_ZONES = ("posix/", "right/", "posixrules", "localtime", "Factory")


class NoRule(ValueError):
    """The expression, the zone or the interval cannot be used; the message says which and why."""


def _field(names: str | None) -> re.Pattern[str]:
    value = f"(?:{_NUMBER}|{names})" if names else _NUMBER
    term = rf"(?:\*|{value}(?:-{value})?)(?:/[0-9]{{1,4}})?"
    return re.compile(rf"{term}(?:,{term})*")


_ONE = re.compile(r"(?P<one>[0-9A-Z]+)-(?P=one)/0*[1-9][0-9]*")
_SHAPES = (_field(None), _field(None), _field(None), _field(_MONTHS), _field(_DAYS))


@dataclass(frozen=True)
class Cron:
    """A five-field expression in a zone. Make it with `cron`."""

    expression: str
    zone: ZoneInfo

    def after(self, start: datetime) -> Iterator[datetime]:
        """Instants after `start`, in order; they end where none comes within 50 years."""
        elapsed = self.expression.split()[1].startswith("*")
        return self._elapsed(start) if elapsed else self._fixed(start)

    def _fixed(self, start: datetime) -> Iterator[datetime]:
        last = start
        # From the local time of `start` on: whatever lies before it locally was due before it.
        for local in _walk(self.expression, start.astimezone(self.zone).replace(tzinfo=None)):
            instant = _first(local, self.zone)
            if instant > last:  # several times within a gap are due at its end, once
                last = instant
                yield instant

    def _elapsed(self, start: datetime) -> Iterator[datetime]:
        """Stretch by stretch between changes of the clock: within one, local time and elapsed time go together."""
        begin, inclusive = start, False
        while True:
            offset = begin.astimezone(self.zone).utcoffset() or timedelta()
            local = (begin + offset).replace(tzinfo=None)
            change: datetime | None = None
            looked_to = begin
            for found in _walk(self.expression, local - SECOND if inclusive else local):
                instant = found.replace(tzinfo=UTC) - offset
                change = _change(self.zone, looked_to, instant)
                if change is not None:
                    break
                looked_to = instant
                yield instant
            if change is None:
                return
            begin, inclusive = change, True


@dataclass(frozen=True)
class Every:
    """Every so many seconds, counted from `anchor`, which itself is not due."""

    seconds: float
    anchor: datetime

    def after(self, start: datetime) -> Iterator[datetime]:
        """Instants after `start`, in order."""
        step = timedelta(seconds=self.seconds)
        number = max(1, (start - self.anchor) // step + 1)
        while (instant := self.anchor + number * step) < END:
            yield instant
            number += 1


Rule = Cron | Every


@lru_cache(maxsize=1000)
def cron(expression: str, time_zone: str) -> Cron:
    """The rule of an expression in a zone. Raises NoRule where either is not one, or its date never comes."""
    fields = expression.upper().split()
    if len(fields) != len(_FIELDS):
        raise NoRule(f"a cron expression has five fields (minute, hour, day of month, month, day of week), not {len(fields)}")
    for name, shape, text in zip(_FIELDS, _SHAPES, fields, strict=True):
        if shape.fullmatch(text) is None:
            raise NoRule(f"the {name} field {text[:40]!r} is not made of numbers, names, '*', '-', ',' and '/'")
    found = Cron(" ".join(_plain(text) for text in fields), zone(time_zone))
    try:
        next(_walk(found.expression, datetime(2000, 1, 1)))  # noqa: DTZ001  # a local time, as all that is walked through
    except CronSimError as error:
        told = str(error).replace("Bad ", "its ")
        raise NoRule(f"the cron expression cannot be used: {told} is out of range, or makes a date that never comes") from None
    except StopIteration:
        raise NoRule("the cron expression names a date that never comes") from None
    return found


def _plain(field: str) -> str:
    """The field with `a-a/n` written as `a`, which it means; `cronsim` takes it for `a/n`, which goes on to the end."""
    return ",".join(match["one"] if (match := _ONE.fullmatch(term)) else term for term in field.split(","))


def zone(name: str) -> ZoneInfo:
    """A time zone by its IANA name. Raises NoRule."""
    if len(name) > 64 or _ZONE.fullmatch(name) is None or name.startswith(_NO_ZONES):
        raise NoRule(f"the time zone {name[:40]!r} is not an IANA name such as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise NoRule(f"the time zone {name!r} is not known") from None


def due(rule: Rule, first: datetime, now: datetime) -> tuple[list[datetime], int, datetime | None]:
    """What is due from `first`, which is, to `now`: (the latest, at most `MOST_DUE`, in order; how many came before those; the
    first instant after `now`, or None).

    Of a cron expression, a backlog beyond `MOST_COUNTED` is counted as that many.
    """
    latest = deque([first], MOST_DUE)
    if isinstance(rule, Every):
        step = timedelta(seconds=rule.seconds)
        before = max(0, (now - first) // step + 1 - MOST_DUE)
        following = rule.after(first + max(0, before - 1) * step)
        if before:
            latest.clear()
    else:
        before, following = 0, rule.after(first)
    seen = len(latest)
    for instant in following:
        if instant > now:
            return list(latest), before + seen - len(latest), instant
        if seen == MOST_COUNTED:
            break
        latest.append(instant)
        seen += 1
    else:
        return list(latest), before + seen - len(latest), None
    # A very long backlog: only its end matters. Where that lies is told by how dense the part seen was.
    span = (latest[-1] - first) * (2 * MOST_DUE / seen)
    latest.clear()
    for instant in rule.after(now - span):
        if instant > now:
            return list(latest), seen - len(latest), instant
        latest.append(instant)
    return list(latest), seen - len(latest), None


def coming(rule: Rule, after: datetime, count: int = 5) -> list[datetime]:
    """The next instants after `after`."""
    return list(islice(rule.after(after), count))


def _walk(expression: str, local: datetime) -> Iterator[datetime]:
    """Local times after `local` that match, without a zone; they end where none comes within 50 years."""
    try:
        yield from CronSim(expression, local)
    except OverflowError:  # the end of the calendar
        return


def _first(local: datetime, zone: ZoneInfo) -> datetime:
    """The first instant of a local time; of one that does not exist, the end of the gap that it lies in."""
    before = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) == local:
        return before
    after = local.replace(tzinfo=zone, fold=1).astimezone(UTC)  # by the offset after the gap: lies before the change
    return _change(zone, after, before) or before


def _change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """The first instant in (start, end] whose offset from UTC differs from that at `start`, to the second; None without one."""
    offset = start.astimezone(zone).utcoffset()
    low, step = start, timedelta(hours=12)  # no two changes are nearer to each other
    while low < end:
        high = min(low + step, end)
        if high.astimezone(zone).utcoffset() == offset:
            low = high
            continue
        while high - low > SECOND:
            middle = low + timedelta(seconds=(high - low) // SECOND // 2 or 1)
            if middle.astimezone(zone).utcoffset() == offset:
                low = middle
            else:
                high = middle
        return high.replace(microsecond=0)
    return None
