"""Many processes migrate at once; an edited or interrupted migration is refused or repeated whole (B36)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from interlock_core.migrate import MigrationError, migrate
from postgres import Postgres
from support.database import MIGRATIONS, drop_database

MIGRATE = "import sys; from pathlib import Path; from interlock_core.migrate import migrate; print(migrate(sys.argv[1], Path(sys.argv[2])))"


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    """A database that nobody migrated."""
    postgres.create_database("empty")
    yield postgres.url("empty")
    drop_database(postgres, postgres.url("empty"))


def _start(url: str, folder: Path, count: int) -> list[tuple[int, str, str]]:
    """`count` processes that migrate at once: (exit status, what they printed, their errors)."""
    started = [
        subprocess.Popen([sys.executable, "-c", MIGRATE, url, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    found = []
    for process in started:
        output, errors = process.communicate(timeout=60)
        found.append((process.returncode, output.strip(), errors))
    return found


@pytest.mark.slow
def test_b36_eight_processes_migrate_an_empty_database_once(empty_url: str) -> None:
    names = [path.name for path in sorted(MIGRATIONS.glob("[0-9]*.sql"))]
    found = _start(empty_url, MIGRATIONS, 8)
    assert [(status, errors) for status, _, errors in found] == [(0, "")] * 8
    assert sum(output.count(".sql") for _, output, _ in found) == len(names)
    with psycopg.connect(empty_url) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM migrations ORDER BY name")] == names
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
    assert migrate(empty_url, MIGRATIONS) == []


def test_b36_processes_of_two_releases_meet(empty_url: str, tmp_path: Path) -> None:
    for path in MIGRATIONS.glob("[0-9]*.sql"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "9000_next.sql").write_text("CREATE TABLE added (n integer); INSERT INTO added VALUES (1);")
    migrate(empty_url, MIGRATIONS)
    found = _start(empty_url, tmp_path, 2)
    assert [(status, errors) for status, _, errors in found] == [(0, "")] * 2
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT count(*) FROM added").fetchone() == (1,)


def test_b36_a_migration_that_fails_leaves_nothing_and_can_be_repeated(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE kept (n integer);")
    (tmp_path / "0002_second.sql").write_text("CREATE TABLE half (n integer); SELECT 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_url, tmp_path)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT to_regclass('kept') IS NOT NULL, to_regclass('half') IS NULL").fetchone() == (
            True,
            True,
        )
    (tmp_path / "0002_second.sql").write_text("CREATE TABLE half (n integer);")
    assert migrate(empty_url, tmp_path) == ["0002_second.sql"]
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE kept (n bigint);")
    with pytest.raises(MigrationError, match="0001_first"):
        migrate(empty_url, tmp_path)


def test_b36_processes_wait_for_a_long_migration_beyond_the_time_outs_of_requests(empty_url: str, tmp_path: Path) -> None:
    for path in MIGRATIONS.glob("[0-9]*.sql"):
        (tmp_path / path.name).write_text(path.read_text())
    migrate(empty_url, tmp_path)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        for name in ("lock_timeout", "statement_timeout"):
            connection.execute(f"ALTER ROLE CURRENT_USER IN DATABASE empty SET {name} = '100ms'")
    (tmp_path / "9000_long.sql").write_text("CREATE TABLE added (n integer); SELECT pg_sleep(1);")
    found = _start(empty_url, tmp_path, 2)
    assert [(status, errors) for status, _, errors in found] == [(0, "")] * 2
    assert sorted(output for _, output, _ in found) == ["['9000_long.sql']", "[]"]


def _run_by_hand(url: str, *arguments: str) -> tuple[int, str, str]:
    line = [sys.executable, "-m", "interlock_core.migrate", *arguments]
    environment = {**os.environ, "INTERLOCK_SERVER_DATABASE_URL": url}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_by_hand_it_tells_what_it_did(empty_url: str) -> None:
    names = [path.name for path in sorted(MIGRATIONS.glob("[0-9]*.sql"))]
    assert _run_by_hand(empty_url, str(MIGRATIONS)) == (0, "\n".join(names) + "\n", "")
    assert _run_by_hand(empty_url, str(MIGRATIONS)) == (0, "up to date\n", "")


@pytest.mark.slow
def test_by_hand_it_says_why_it_cannot(empty_url: str, tmp_path: Path) -> None:
    for url, why in {
        "postgresql://nobody@127.0.0.1:1/none": "Connection refused",
        "": "INTERLOCK_SERVER_DATABASE_URL",
        "not an address": "is no address",
    }.items():
        status, output, errors = _run_by_hand(url, str(MIGRATIONS))
        assert (status, output) == (1, "")
        assert errors.startswith("not migrated: ")
        assert why in errors
        assert "Traceback" not in errors
    for arguments in ([], [str(tmp_path)], [str(tmp_path / "absent")], [str(MIGRATIONS), "more"]):
        status, output, errors = _run_by_hand(empty_url, *arguments)
        assert (status, output, errors.partition(":")[0]) == (2, "", "usage")
