"""Hints from the service: one thread keeps the worker's stream open, and each frame only says where to look again.

connect → ready (claim) → wake (claim) · cancel, drain (ask how things stand) · revoked (the key is gone)
Whatever happens to the stream, work is found by polling meanwhile.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlock import clock
from interlock.backoff import Backoff, jittered
from interlock.bodies import LONGEST_LINE
from interlock.client import Client, EventStream
from interlock.errors import ApiError, InterlockError, Unreachable
from interlock.settings import same_security

if TYPE_CHECKING:
    from interlock.exchange import Identity

log = logging.getLogger("interlock")

SILENCE = 40.0
"""Seconds without a byte after which a stream is dead: the service sends a comment every 15."""

STEADY = 60.0
"""Seconds after which a stream counts as good, and the back-off starts anew. One that is dropped at once does not."""

CONFIG_EVERY = 600.0
"""Seconds between looks for a stream where the service has none."""


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    event: str
    data: Mapping[str, Any]


class Stream:
    """The thread. The callables are given what a frame hints at."""

    def __init__(
        self,
        client: Client,
        identity: Identity,
        types: Iterable[str],
        *,
        on_config: Callable[[Mapping[str, Any]], None],
        on_ready: Callable[[], None],
        on_lost: Callable[[], None],
        on_wake: Callable[[], None],
        on_look: Callable[[], None],
    ) -> None:
        self._client = client
        self._identity = identity
        self._types = frozenset(types)
        self._on_config = on_config
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._on_wake = on_wake
        self._on_look = on_look
        self._closing = threading.Event()
        self._open: EventStream | None = None
        self._thread = threading.Thread(target=self._run, name="interlock-stream", daemon=True)
        self._told_lost: int | None = None  # the level at which the log last said that there is none
        self.connected = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and its stream."""
        self._closing.set()
        stream = self._open
        if stream is not None:
            stream.interrupt()
        self._thread.join(5.0)

    def _run(self) -> None:
        backoff = reopening()
        while not self._closing.is_set():
            begun = clock.now()
            pause: float | None = None
            try:
                config = self._client.request("GET", "/v1/config", timeout=15.0, stop=self._closing.is_set)
                self._on_config(config)
                url = config.get("streamUrl")
                if isinstance(url, str) and url and same_security(self._client.url, url):
                    self._follow(url)
                else:
                    pause = jittered(CONFIG_EVERY)
            except ApiError as error:
                self._tell_loss(logging.WARNING, "the stream is refused: %s", error)
                pause = None if error.retryable else jittered(60.0)
            except InterlockError as error:
                if not self._closing.is_set():
                    self._tell_loss(logging.INFO, "no stream, polling meanwhile: %s", error)
            except Exception:
                log.exception("the stream failed unexpectedly; it is opened again")
            if self._closing.is_set():
                return
            if self.connected:
                self.connected = False
                self._on_lost()
            if clock.now() - begun > STEADY:
                backoff.reset()
            self._pause(backoff.next() if pause is None else pause)

    def _tell_loss(self, level: int, text: str, error: InterlockError) -> None:
        log.log(level, text, error)
        self._told_lost = max(level, self._told_lost or level)

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _follow(self, url: str) -> None:
        params = {
            "workerId": self._identity.worker_id,
            "instanceId": self._identity.instance_id,
            "pool": self._identity.pool,
            "types": ",".join(sorted(self._types)),
        }
        stream = self._client.open_stream(url, "/v1/stream", params, SILENCE)
        self._open = stream
        try:
            if self._closing.is_set():
                return
            for frame in read_frames(stream.lines()):
                self._heed(frame)
            if not self._closing.is_set():
                raise Unreachable("the stream ended")
        finally:
            self._open = None
            stream.close()

    def _heed(self, frame: Frame) -> None:
        if frame.event == "ready":
            self.connected = True
            if self._told_lost is not None:
                log.log(self._told_lost, "the stream is back")  # as loud as its loss was told
                self._told_lost = None
            self._on_ready()
        elif frame.event == "wake":
            types = frame.data.get("types")
            if not isinstance(types, list) or "*" in types or not self._types.isdisjoint(map(str, types)):
                self._on_wake()
        elif frame.event in ("cancel", "drain"):
            self._on_look()
        elif frame.event == "revoked":
            log.error("the worker's key was revoked: reports are kept in the spool until there is a new one")


def reopening() -> Backoff:
    """The pauses before a stream is opened again. Thousands may have lost theirs at one instant: they come back over seconds."""
    return Backoff(first=2.0, longest=30.0, spread=0.9)


def read_frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Server-sent events from lines; comments and frames whose data is no JSON object carry nothing."""
    event = ""
    data: list[str] = []
    size = 0
    for line in lines:
        if not line:
            if event or data:
                yield Frame(event or "message", read_data("\n".join(data)))
            event, data, size = "", [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            size += len(value) + 1
            if size > LONGEST_LINE:
                raise Unreachable("the stream sends an event that does not end")
            data.append(value)


def read_data(text: str) -> Mapping[str, Any]:
    """The data of a frame."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
