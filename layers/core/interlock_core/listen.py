"""One session that LISTENs for hints: proved alive every few seconds, replaced when it is not.

A half-open socket raises no event, and a session may live on after its subscription has gone. So the proof is a round
trip of the thing itself: every `PROOF_SECONDS` the session notifies its own channel and must hear that before the next
proof is due. It is driven by hand on libpq's non-blocking calls, since a query that waits on a silent peer cannot be
abandoned in time.

Needs a session of its own: the address must be the database's, not that of a pooler which lends sessions by transaction.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable

import psycopg
from psycopg.pq import ExecStatus

from .address import Address
from .errors import Unavailable
from .hints import CHANNEL

log = logging.getLogger("interlock.listen")

PROOF_SECONDS = 4.0
CONNECT_SECONDS = 5
TOLD_EVERY_SECONDS = 60.0  # hints that nobody understands are told no more often
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_PING = '{"ping":"'


class SessionLost(Exception):
    """The session ended, fell silent or lost its subscription."""


class Listener:
    """Hears every notice of the channel from `run` on; of the time between two sessions it hears nothing.

    `heard(payload)` is called for each notice. `renewed()` is called whenever a session has proved that it hears, the first
    one included: what was said before is lost, so whoever relies on hints reads the truth again.
    """

    def __init__(
        self,
        address: str | Address,
        heard: Callable[[str], None],
        renewed: Callable[[], None],
        *,
        proof_seconds: float = PROOF_SECONDS,
    ) -> None:
        self._address = Address.at(address) if isinstance(address, str) else address
        self._heard = heard
        self._renewed = renewed
        self._proof_seconds = proof_seconds
        self._token = ""
        self._asked_at = 0.0
        self._heard_at = 0.0
        self._proved_at = 0.0
        self.listening = False
        self.sessions = 0
        self.misunderstood = 0  # hints
        self._tell_at = 0.0
        self.lag_seconds: float | None = None  # of the last proof, from the question to its echo

    def lag(self) -> float | None:
        """How late a hint comes now, in seconds: as the last proof did, or since when a proof is missing. None before the first."""
        if self.lag_seconds is None:
            return None
        if not self.listening:
            return time.monotonic() - self._proved_at
        return max(self.lag_seconds, time.monotonic() - self._asked_at if self._token else 0.0)

    async def run(self) -> None:
        """Listens for ever; ends by cancellation only."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._session()
            except (psycopg.Error, SessionLost, OSError, Unavailable) as error:
                # Told when a session is lost, and once where there was none; an outage fills no log.
                level = logging.WARNING if self.listening or pause == FIRST_PAUSE else logging.INFO
                log.log(level, "the session that listens for hints is replaced: %s", str(error).strip() or type(error).__name__)
            except Exception:  # Whatever it was: a process that never listens again tells nobody anything in time.
                log.exception("the session that listens for hints is replaced")
            finally:
                self.listening = False
            # Growing and jittered, so that a database that comes back is not met by all its listeners at once; a session
            # that dies young does not reset it.
            pause = FIRST_PAUSE if time.monotonic() - began > 30 else min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _session(self) -> None:
        url = await self._address.find()
        try:
            connection = await psycopg.AsyncConnection.connect(
                url, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name="interlock stream"
            )
        except psycopg.OperationalError:
            self._address.forget(url)  # its password may have been changed: the next session asks for it anew
            raise
        loop = asyncio.get_running_loop()
        pgconn = connection.pgconn
        ended: asyncio.Future[None] = loop.create_future()
        pgconn.nonblocking = 1
        descriptor = pgconn.socket
        loop.add_reader(descriptor, self._read, pgconn, ended)
        try:
            self._ask(pgconn, f"LISTEN {CHANNEL};")
            while True:
                await asyncio.wait((ended,), timeout=self._proof_seconds)
                if ended.done():
                    ended.result()
                if not self._token:
                    self._ask(pgconn)
                elif time.monotonic() - self._heard_at > self._proof_seconds:
                    raise SessionLost(f"it did not hear itself within {self._proof_seconds:g} s")
        finally:
            loop.remove_reader(descriptor)
            if ended.done() and not ended.cancelled():
                ended.exception()  # seen, also where the session ends for another reason
            await connection.close()

    def _ask(self, pgconn: psycopg.pq.abc.PGconn, before: str = "") -> None:
        self._token = secrets.token_hex(8)
        self._asked_at = time.monotonic()
        pgconn.send_query(f"""{before}NOTIFY {CHANNEL}, '{_PING}{self._token}"}}'""".encode())
        pgconn.flush()  # what does not fit the socket's buffer now is a silent peer, and the next proof will say so

    def _read(self, pgconn: psycopg.pq.abc.PGconn, ended: asyncio.Future[None]) -> None:
        try:
            pgconn.consume_input()
            while not pgconn.is_busy() and (result := pgconn.get_result()) is not None:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise SessionLost(result.error_message.decode(errors="replace"))
            while (notice := pgconn.notifies()) is not None:
                self._notice(notice.extra.decode(errors="replace"))
        except (psycopg.Error, SessionLost) as error:
            if not ended.done():
                ended.set_exception(error)

    def _notice(self, payload: str) -> None:
        self._heard_at = time.monotonic()
        if payload.startswith(_PING):
            if self._token and payload == f'{_PING}{self._token}"}}':
                self._token = ""
                self._proved_at = time.monotonic()
                self.lag_seconds = self._proved_at - self._asked_at
                if not self.listening:
                    self.listening = True
                    self.sessions += 1
                    self._renewed()
            return
        try:
            self._heard(payload)
        except Exception as error:
            self._not_understood(error)

    def _not_understood(self, error: Exception) -> None:
        """Tells why, but not of each: they may come by the thousand, from whoever may notify."""
        self.misunderstood += 1
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TOLD_EVERY_SECONDS
            log.error("a hint was not understood and is left out (%d until now)", self.misunderstood, exc_info=error)
