"""The response that is one open stream, whoever reads it and whatever it tells."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from interlock_core.testpoint import testpoint

log = logging.getLogger("interlock.stream")

HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
COMMENT = b": \n\n"
REVOKED = b"event: revoked\ndata: {}\n\n"

KEEP_ALIVE_SECONDS = 15.0


class Stream(Protocol):
    """What is told to one reader. Belongs to the event loop that made it."""

    opening: bytes  # told at once
    key_id: str
    revoked: bool
    ended: bool

    async def next(self) -> bytes:
        """What is to be sent now: waits until there is something. Empty when the stream has ended."""

    def end(self, *, revoked: bool = False) -> None:
        """Close the stream, after a last frame where the key was revoked."""

    def keep_alive(self, now: float) -> None:
        """Send a comment if nothing was sent for about `KEEP_ALIVE_SECONDS`."""

    def describe(self) -> str:
        """Whose stream it is, for the log."""


class Hub(Protocol):
    """Where streams hear what they tell."""

    closing: bool

    def join(self, stream: Stream, /) -> None:
        """From here on the stream hears."""

    def leave(self, stream: Stream, /) -> None:
        """The stream is gone. Harmless if it never joined."""


class EventStream(Response):
    """One open stream. Made by hand: a task for the response, one that sees the reader go, and the stream's own state."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, stream: Stream, stall_seconds: float, headers: dict[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS | headers if headers else HEADERS)
        self._hub = hub
        self._stream = stream
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (the interface of every response)
        """Serves the stream until its reader goes, stalls, or it is ended."""
        stream = self._stream
        await testpoint("stream.join")
        # Joined before it is told that it is: whatever happens from here on is heard.
        self._hub.join(stream)
        gone = asyncio.get_running_loop().create_task(_until_gone(receive, stream))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": stream.opening, "more_body": True})
            while frames := await stream.next():
                async with asyncio.timeout(self._stall_seconds):
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
            if not gone.done():
                # A host that stops does not wait for those who do not read.
                async with asyncio.timeout(1.0 if self._hub.closing else self._stall_seconds):
                    await send({"type": "http.response.body", "body": REVOKED if stream.revoked else b"", "more_body": False})
        except TimeoutError:
            log.info("a stream of %s took nothing for %g s and is closed", stream.describe(), self._stall_seconds)
            self._hub.leave(stream)
            # What the socket holds can no longer be flushed, so closing it politely would pin it: the kernel ends it, by the
            # time limit that the host's listener carries (tune).
            await asyncio.wait((gone,), timeout=0 if self._hub.closing else self._stall_seconds)
        finally:
            self._hub.leave(stream)
            gone.cancel()


async def _until_gone(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end()
