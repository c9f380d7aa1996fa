"""How long to wait before asking again: growing, jittered, capped, and never surprised by a header."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER = 60.0
"""Seconds. A larger Retry-After is cut to this: a typing error upstream must not stop a client for a day."""


class Backoff:
    """Delays that grow from `first` to `longest` seconds, each with up to `spread` of it (a fraction) taken off at random.

    Nothing overflows at any number of tries: the step is capped before the power is computed.
    """

    def __init__(self, first: float = 0.2, longest: float = 30.0, factor: float = 2.0, spread: float = 0.5) -> None:
        self.first = first
        self.longest = longest
        self.factor = factor
        self.spread = spread
        self.tries = 0

    def next(self, retry_after: float | None = None) -> float:
        """The next delay in seconds; never shorter than what the service asked for."""
        ceiling = growing_delay(self.tries, self.first, self.longest, self.factor)
        self.tries += 1
        delay = ceiling * (1 - random.random() * self.spread)
        if retry_after is not None and retry_after > delay:
            # All clients were told the same instant: spread them behind it, never before it.
            delay = retry_after + random.random() * min(1.0, 0.1 * retry_after + 0.1)
        return delay

    def reset(self) -> None:
        """Start again with the first delay."""
        self.tries = 0


def growing_delay(tries: int, first: float, longest: float, factor: float = 2.0) -> float:
    """`first · factor^tries`, at most `longest`; for any number of tries."""
    delay = first
    for _ in range(min(tries, 64)):
        if delay >= longest:
            break
        delay *= factor
    return min(delay, longest)


def jittered(seconds: float, part: float = 0.2) -> float:
    """`seconds`, up to `part` of it shorter."""
    return seconds * (1 - random.random() * part)


def read_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds told by a Retry-After header (a number or an HTTP date), between 0 and LONGEST_RETRY_AFTER.

    None where there is no header, or nothing in it that the standard allows: the own backoff decides then.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return LONGEST_RETRY_AFTER if len(text) > 9 else min(float(text), LONGEST_RETRY_AFTER)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    try:
        seconds = (at - (now or datetime.now(timezone.utc))).total_seconds()
    except OverflowError:
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
