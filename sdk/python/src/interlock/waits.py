"""Waits that hold no slot: the handler is unwound, and comes back to the same place when what it waits for is there.

wait → stored: its output · not stored: the attempt ends as `suspended`
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from interlock.errors import WaitTimeout
from interlock.run import Call, Run
from interlock.submission import to_seconds
from interlock.tasks import read_time, write_time

LONGEST = 315_360_000
"""Seconds: what the service takes."""

MISSING: Any = object()
"""No default was given: None is one."""


async def wait(run: Run, call: Call, condition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The output of a wait that is over; else the attempt ends here until it is."""
    call.begun = True
    try:
        stored = run.find(call, "wait")
        if stored is None or not stored.final:
            run.suspend({"name": call.name, **condition})
    finally:
        call.finish()
    output: Any = stored.output
    return output if isinstance(output, Mapping) else {}


async def sleep(run: Run, call: Call, condition: Mapping[str, Any]) -> None:
    """Wait for a time."""
    await wait(run, call, condition)


async def take_signal(run: Run, call: Call, name: str, timeout: float | None, default: Any) -> Any:
    """The payload of a signal. Raises WaitTimeout where it did not come in time and there is no default."""
    condition: dict[str, Any] = {"signal": name}
    if timeout is not None:
        condition["afterSeconds"] = timeout
    output = await wait(run, call, condition)
    if "signal" in output:
        return output["signal"]
    if default is MISSING:
        raise WaitTimeout(name, call.name)
    return default


def read_duration(value: float | timedelta, what: str) -> float:
    """A time to wait, in seconds. Raises ValueError for what is none."""
    seconds: Any = to_seconds(value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST:
        raise ValueError(f"{what} is a number of seconds from 0 to {LONGEST} (ten years), or a timedelta, got {value!r}")
    return float(seconds)


def read_instant(value: datetime | str) -> str:
    """An instant for the protocol. Raises ValueError for what is none, or no time that the service takes."""
    try:
        text = write_time(value)
    except OverflowError:
        text = ""
    instant = read_time(text)
    if instant is None or not 1970 <= instant.year < 9000:
        raise ValueError(f"a time to wait for is an instant between the years 1970 and 9000, got {value!r}")
    return text
