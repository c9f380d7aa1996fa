"""Applies `migrations/*.sql` in order, each once. Safe when many processes do it at the same moment."""

from __future__ import annotations

import hashlib
from pathlib import Path

import psycopg

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


def migrate(database_url: str, folder: Path) -> list[str]:
    """Brings the database up to date and returns the names of the migrations that this call applied.

    Each file is one transaction, recorded in `migrations` with its hash. Raises MigrationError where an applied file has
    changed since. Time-outs and the planner's mode are set on the role.
    """
    applied = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        for path in sorted(folder.glob("[0-9]*.sql")):
            with connection.transaction():
                _wait_for_turn(connection)
                connection.execute(
                    'CREATE TABLE IF NOT EXISTS migrations (name text COLLATE "C" PRIMARY KEY, hash text NOT NULL,'
                    " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
                )
                if _apply(connection, path):
                    applied.append(path.name)
        row = connection.execute("SELECT current_user, current_database()").fetchone()
        assert row is not None
        with connection.transaction():
            _wait_for_turn(connection)
            for name, value in _ROLE_SETTINGS.items():
                connection.execute(
                    psycopg.sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                        psycopg.sql.Identifier(row[0]), psycopg.sql.Identifier(row[1]), psycopg.sql.Identifier(name), value
                    )
                )
    return applied


def _wait_for_turn(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Waits, however long it takes, for other migrating processes; the role's time-outs are for requests.

    A migration itself may run long, but waits for a table's lock no longer than a request does: everybody else queues behind it.
    """
    connection.execute("SET LOCAL statement_timeout = 0")
    connection.execute("SET LOCAL lock_timeout = 0")
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    connection.execute(psycopg.sql.SQL("SET LOCAL lock_timeout = {}").format(_ROLE_SETTINGS["lock_timeout"]))


def _apply(connection: psycopg.Connection[tuple[object, ...]], path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    row = connection.execute("SELECT hash FROM migrations WHERE name = %s", [path.name]).fetchone()
    if row is not None:
        if row[0] != digest:
            raise MigrationError(
                f"this database was made by another state of {path.name}. Go on with the version that made it, or use another database"
                " (a local one: another --data folder). Whoever edits migrations: an applied one stays as it is; add a new file."
            )
        return False
    connection.execute(text)
    connection.execute("INSERT INTO migrations (name, hash) VALUES (%s, %s)", [path.name, digest])
    return True
