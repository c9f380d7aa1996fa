"""Instants as text: what is read as one, and what is not."""

from __future__ import annotations

import re

import pytest

from interlock_core.wire.rules import instant
from interlock_core.wire.times import read, when


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000Z"),
        ("2026-01-31t12:00:00.5z", "2026-01-31T12:00:00.500000Z"),
        ("2026-01-31 12:00:00.123456789+01:30", "2026-01-31T10:30:00.123456Z"),
        ("2026-01-01T00:00:00-00:00", "2026-01-01T00:00:00.000000Z"),
    ],
)
def test_rfc_3339_is_read(text: str, instant: str) -> None:
    assert when(read(text)) == instant


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "tomorrow",
            "2026-01-31",
            "2026-W05-6T12:00:00Z",
            "2026-031T12:00:00+00:00",
            "20260131T120000Z",
            "2026-01-31T12:00Z",
        ),
        *("2026-01-31T12:00:00+0100", "2026-01-31T12:00:00+01:00:30", "2026-01-31T12:00:00,5Z", "2026-01-31T12:00:00Z "),
        *(
            "2026-01-31T12:00:00Z\n",
            "2026-02-30T12:00:00Z",
            "2026-01-31T25:00:00Z",
            "2026-01-31T12:00:60Z",
            "２026-01-31T12:00:00Z",
            "2026-01-31T12:00:00+25:00",
            "2026-01-31T12:00:00-01:60",
        ),
    ],
)
def test_what_is_no_instant_of_rfc_3339_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read(text)
    assert not {"isoformat", "timedelta"} & set(re.findall(r"\w+", str(refused.value))), "Python's own words"


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z"])
def test_an_instant_at_the_ends_of_the_calendar_is_told_so(text: str) -> None:
    with pytest.raises(ValueError, match="must lie between the years 1970 and 9000"):
        instant(text)


def test_an_instant_without_its_offset_is_told_so() -> None:
    with pytest.raises(ValueError, match="must name its offset from UTC"):
        read("2026-01-31T12:00:00")
