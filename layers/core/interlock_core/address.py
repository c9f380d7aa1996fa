"""Where the database is and who logs in: an address from the settings, or one made of a secret that is read once.

A secret is `{"url": "postgresql://…"}`, or what RDS stores: `{"username", "password", "host", "port", "dbname"}`. One that is
neither is asked for again at the next call, and no message shows anything of it: the driver's would, and its text reaches logs.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from .aws import AwsFailed, fetch_secret, find_credentials, make_login_token
from .errors import Unavailable
from .settings import Platform, Settings

#: A wrong password is no reason to ask for the secret at every connection.
RENEW_SECONDS = 5.0


class Address:
    """The database's address, for one process."""

    def __init__(self, settings: Settings, platform: Platform | None = None) -> None:
        self._settings = settings
        self._platform = platform
        self._found = settings.database_url
        self._read_at: float | None = None
        self.reads = 0  # of the secret: counted, so that tests can hold it to one

    @classmethod
    def at(cls, url: str) -> Address:
        """An address that is known."""
        return cls(Settings(database_url=url))

    async def find(self) -> str:
        """The address to connect to; the secret is read at the first call only. Raises Unavailable where it cannot be."""
        if not self._found:
            self._found = await asyncio.to_thread(self._read)
        return self._usable(self._found)

    def find_now(self) -> str:
        """As `find`, blocking."""
        if not self._found:
            self._found = self._read()
        return self._usable(self._found)

    def forget(self, refused: str) -> bool:
        """After `refused` was refused for its password: whether asking anew may help. The next `find` reads the secret again."""
        if not self._settings.database_secret_arn or self._settings.database_iam:
            return False
        if refused != self._found:  # somebody else has read it since
            return True
        if self._read_at is not None and time.monotonic() - self._read_at < RENEW_SECONDS:
            return False
        self._found = ""
        return True

    def _read(self) -> str:
        arn = self._settings.database_secret_arn
        if not arn:
            raise Unavailable("no database is configured: INTERLOCK_SERVER_DATABASE_URL or …_DATABASE_SECRET_ARN")
        self.reads += 1
        self._read_at = time.monotonic()
        try:
            secret = fetch_secret(arn, self._platform or Platform.from_environment())
        except AwsFailed as error:
            raise Unavailable(f"the database's secret cannot be read: {error}") from error
        return _checked(_url_of(secret, self._settings.database_host))

    def _usable(self, found: str) -> str:
        return self._with_token(found) if self._settings.database_iam else _checked(found)

    def _with_token(self, url: str) -> str:
        platform = self._platform or Platform.from_environment()
        parts = urlsplit(url)
        try:
            host, port = parts.hostname or "", parts.port or 5432
        except ValueError:
            raise Unavailable("the database's address has no one port to log in at by IAM") from None
        user = unquote(parts.username or "")
        try:
            credentials = find_credentials(platform)
        except AwsFailed as error:
            raise Unavailable(f"a login token cannot be made: {error}") from error
        token = make_login_token(host, port, user, platform.region, credentials, datetime.now(UTC))
        return parts._replace(netloc=f"{quote(user, safe='')}:{quote(token, safe='')}@{host}:{port}").geturl()


def _checked(url: str) -> str:
    """The address, where the driver can read it."""
    try:
        conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        raise Unavailable(
            "the database's address is no address: postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=require"
        ) from None
    return url


def _url_of(secret: dict[str, Any], host: str) -> str:
    if secret.get("url"):
        return str(secret["url"])
    for name in ("username", "password", *(() if host else ("host",))):
        if not secret.get(name):
            raise Unavailable(f"the database's secret has neither a url nor a {name}")
    user, password = (quote(str(secret[name]), safe="") for name in ("username", "password"))
    server = host or str(secret["host"])
    place = f"{f'[{server}]' if server.count(':') > 1 else server}:{secret.get('port') or 5432}"
    # RDS speaks TLS, and refuses anything else where it is told to; a secret that means otherwise gives a url.
    return f"postgresql://{user}:{password}@{place}/{quote(str(secret.get('dbname') or 'postgres'), safe='')}?sslmode=require"
