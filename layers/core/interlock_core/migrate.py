"""Applies `migrations/*.sql` in order, each once. Safe when many processes do it at the same moment.

A file is one transaction, unless its first line says `--! no-transaction` (an index made concurrently): then each of its
statements, parted by lines `-- ::`, is one of its own. They must be repeatable (`IF NOT EXISTS`), since a run that was cut
begins such a file anew; an index that a cut run left invalid is dropped before.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .address import Address
from .errors import Unavailable
from .settings import Settings

_LOCK = 0x696C6F636B  # one transaction-scoped advisory lock: it cannot outlive its transaction, on a pooler either

# Set on the role, since a function may not SET anything on a pooled connection. The statements are written so that one plan
# fits all parameters: planning anew would cost more than running them.
_ROLE_SETTINGS = {
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "plan_cache_mode": "force_generic_plan",
    # A kept plan may have been made while a table was empty, and must still be right with a million rows: rows are reached
    # through indexes, one by one, and never by reading a table from end to end.
    "enable_seqscan": "off",
    "jit": "off",
}


class MigrationError(RuntimeError):
    """An applied migration was edited, or the database is newer than this code; the message names the file."""


Connection = psycopg.Connection[tuple[object, ...]]
#: What the driver raises where the database is away: the deployment's function knows this module and no driver.
Unreachable = psycopg.OperationalError

#: A server that is away, or falls silent, is noticed within these many seconds; what it works on may take as long as it likes.
_CONNECT = "connect_timeout=10 tcp_user_timeout=20000 keepalives_idle=10 keepalives_interval=5 keepalives_count=3"
NO_TRANSACTION = "--! no-transaction"


#: Between two looks whether it is one's turn.
TURN_SECONDS = 0.2
Take = Callable[[Connection], None]


def hash_folder(folder: Path) -> str:
    """What a deployment carries to say which migrations it means: one hash of all files, by name and text."""
    return hashes_until(folder)[-1]


def hashes_until(folder: Path) -> list[str]:
    """The folder's hash as it was before its first file, after each of them, and now: those of the releases before."""
    digest = hashlib.sha256()
    found = [digest.hexdigest()]
    for path in sorted(folder.glob("[0-9]*.sql")):
        digest.update(f"{path.name}\0{path.read_text(encoding='utf-8')}\0".encode())
        found.append(digest.hexdigest())
    return found


def migrate(
    database_url: str,
    folder: Path,
    opened: Callable[[Connection], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Brings the database up to date and returns the names of the migrations that this call applied.

    Each file is recorded in `migrations` with its hash. Raises MigrationError where an applied file has changed since. A
    database that is newer than `folder` is left as it is. Time-outs and the planner's mode are set on the role.
    `opened` is given each connection, so that somebody else may cancel what it does; `pause` waits for other processes.
    """
    applied = []
    take = partial(_wait_for_turn, pause=pause)
    with _open(database_url) as connection:
        opened(connection)
        for path in sorted(folder.glob("[0-9]*.sql")):
            if _is_applied(connection, path, take):
                continue
            if path.read_text(encoding="utf-8").startswith(NO_TRANSACTION):
                # The turn is another session's: its lock cannot outlive it, and the statements need to be outside of any.
                with _open(database_url) as turn, turn.transaction():
                    opened(turn)
                    take(turn)
                    done = _apply_outside(connection, path, take)
            else:
                with connection.transaction():
                    take(connection)
                    done = _apply(connection, path, take)
            if done:
                applied.append(path.name)
        row = connection.execute("SELECT current_user, current_database()").fetchone()
        assert row is not None
        with connection.transaction():
            take(connection)
            for name, value in _ROLE_SETTINGS.items():
                connection.execute(
                    psycopg.sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                        psycopg.sql.Identifier(str(row[0])),
                        psycopg.sql.Identifier(str(row[1])),
                        psycopg.sql.Identifier(name),
                        value,
                    )
                )
    return applied


def _open(database_url: str) -> Connection:
    return psycopg.connect(make_conninfo(_CONNECT, **conninfo_to_dict(database_url)), autocommit=True)


def _wait_for_turn(connection: Connection, pause: Callable[[float], None]) -> None:
    """Waits, however long it takes, for other migrating processes; the role's time-outs are for requests.

    By looking again and again: a statement that waits keeps its snapshot, and an index that another process makes concurrently
    waits for every older snapshot, so that the two would wait for each other.
    A migration itself may run long, but waits for a table's lock no longer than a request does: everybody else queues behind it.
    """
    connection.execute("SET LOCAL statement_timeout = 0")
    connection.execute("SET LOCAL lock_timeout = 0")
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    # Without a parameter: one makes a portal of the statement, which keeps its snapshot as well.
    while connection.execute(f"SELECT pg_try_advisory_xact_lock({_LOCK})").fetchone() != (True,):
        pause(TURN_SECONDS)
    connection.execute(psycopg.sql.SQL("SET LOCAL lock_timeout = {}").format(_ROLE_SETTINGS["lock_timeout"]))


def _is_applied(connection: Connection, path: Path, take: Take) -> bool:
    """Whether this file was applied; makes the record of it where there is none yet."""
    if connection.execute("SELECT to_regclass('migrations')").fetchone() == (None,):
        with connection.transaction():
            take(connection)
            connection.execute(
                'CREATE TABLE IF NOT EXISTS migrations (name text COLLATE "C" PRIMARY KEY, hash text NOT NULL,'
                " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
            )
    row = connection.execute("SELECT hash FROM migrations WHERE name = %s", [path.name]).fetchone()
    if row is not None and row[0] != _hash(path):
        raise MigrationError(
            f"this database was made by another state of {path.name}. Go on with the version that made it, or use another database"
            " (a local one: another --data folder). Whoever edits migrations: an applied one stays as it is; add a new file."
        )
    return row is not None


def _apply(connection: Connection, path: Path, take: Take) -> bool:
    if _is_applied(connection, path, take):  # by whoever had the turn before
        return False
    connection.execute(path.read_text(encoding="utf-8"))
    _record(connection, path)
    return True


def _apply_outside(connection: Connection, path: Path, take: Take) -> bool:
    if _is_applied(connection, path, take):
        return False
    connection.execute("SET statement_timeout = 0")
    # What is done concurrently waits for every transaction that is open, and holds up nobody meanwhile.
    connection.execute("SET lock_timeout = 0")
    try:
        for index in connection.execute(_INVALID).fetchall():
            connection.execute(
                psycopg.sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(psycopg.sql.Identifier(str(index[0])))
            )
        for statement in re.split(r"^-- ::.*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if re.sub(r"--[^\n]*", "", statement).strip():
                connection.execute(statement)
    finally:
        if not connection.closed:
            connection.execute("RESET statement_timeout")
            connection.execute("RESET lock_timeout")
    _record(connection, path)
    return True


_INVALID = """
    SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace
"""


def _record(connection: Connection, path: Path) -> None:
    connection.execute("INSERT INTO migrations (name, hash) VALUES (%s, %s)", [path.name, _hash(path)])


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()


def main(arguments: list[str]) -> int:
    """`python -m interlock_core.migrate FOLDER`: by hand, for what takes longer than a function may. Returns the exit status."""
    say = partial(print, file=sys.stderr)
    folder = Path(arguments[0]) if len(arguments) == 1 else None
    if folder is None or not any(folder.glob("[0-9]*.sql")):  # a slip in the name must not pass for an upgrade
        say("usage: python -m interlock_core.migrate FOLDER     the folder of the .sql files, such as migrations")
        return 2
    try:
        applied = migrate(Address(Settings.from_environment()).find_now(), folder)
    except (MigrationError, Unavailable, psycopg.Error) as problem:
        say(f"not migrated: {problem}")
        return 1
    print(*applied or ["up to date"], sep="\n")  # noqa: T201 (a program)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
