"""Migrate as CloudFormation's custom resource: it always answers, applies forwards only, and drops nothing."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from events import make_resource_event
from interlock_core.migrate import _LOCK, MigrationError, hash_folder, migrate
from service import _load as load_module
from support.waiting import wait_until
from template import ROOT

MIGRATIONS = ROOT / "migrations"
OURS = {"Hash": hash_folder(MIGRATIONS)}


class CloudFormation:
    """Takes answers at a signed address, as the stack does."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.content_types: list[str | None] = []
        self.sizes: list[int] = []
        taken = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                taken.content_types.append(self.headers.get("content-type"))
                body = self.rfile.read(int(self.headers["content-length"]))
                taken.sizes.append(len(body))
                taken.answers.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/answer?X-Amz-Signature=abc"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stack() -> Iterator[CloudFormation]:
    found = CloudFormation()
    yield found
    found.stop()


class Context:
    """What is left of the function's time."""

    def __init__(self, seconds: float = 900) -> None:
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self._end - time.monotonic()) * 1000)


@pytest.fixture
def function() -> ModuleType:
    return load_module(ROOT / "functions" / "migrate")


@pytest.fixture
def empty_url(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without anything in it, which is the function's."""
    postgres.create_database("custom_resource")
    url = postgres.url("custom_resource")
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", url)
    yield url
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE custom_resource WITH (FORCE)")


def schema_of(url: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        columns = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
        found = connection.execute(columns).fetchall()
        has = connection.execute("SELECT to_regclass('migrations') IS NOT NULL").fetchone()
        return [found, connection.execute("SELECT * FROM migrations ORDER BY 1").fetchall() if has == (True,) else []]


def test_create_and_update_bring_the_schema_up_to_date(function: ModuleType, stack: CloudFormation, empty_url: str) -> None:
    create = make_resource_event("Create", stack.url, OURS)
    function.handler(create, Context())
    (answer,) = stack.answers
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "interlock-schema")
    assert "0001_core.sql" in answer["Reason"]
    assert {answer[name] == create[name] for name in ("StackId", "RequestId", "LogicalResourceId")} == {True}
    assert stack.content_types == [""]  # else the address's signature is refused
    before = schema_of(empty_url)
    again = make_resource_event(
        "Update", stack.url, OURS, PhysicalResourceId="interlock-schema", OldResourceProperties={"Hash": "old"}
    )
    function.handler(again, Context())
    assert (stack.answers[1]["Status"], stack.answers[1]["Reason"]) == ("SUCCESS", "up to date")
    assert schema_of(empty_url) == before


def test_a_roll_back_with_an_old_hash_changes_nothing_and_succeeds(
    function: ModuleType, stack: CloudFormation, empty_url: str
) -> None:
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    before = schema_of(empty_url)
    back = make_resource_event(
        "Update", stack.url, {"Hash": "0" * 64}, PhysicalResourceId="interlock-schema", OldResourceProperties=OURS
    )
    function.handler(back, Context())
    assert (stack.answers[-1]["Status"], stack.answers[-1]["PhysicalResourceId"]) == ("SUCCESS", "interlock-schema")
    assert "roll-back" in stack.answers[-1]["Reason"]
    assert schema_of(empty_url) == before


def test_an_older_release_leaves_a_newer_schema_alone(
    function: ModuleType, stack: CloudFormation, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roll-back reaches the old code: its own hash, on the database of the new."""
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    before = schema_of(empty_url)
    (tmp_path / "0001_core.sql").write_text((MIGRATIONS / "0001_core.sql").read_text())
    monkeypatch.setattr(function, "FOLDER", tmp_path)
    old = {"Hash": hash_folder(tmp_path)}
    function.handler(make_resource_event("Update", stack.url, old, PhysicalResourceId="x", OldResourceProperties=OURS), Context())
    assert (stack.answers[-1]["Status"], stack.answers[-1]["Reason"]) == ("SUCCESS", "up to date")
    assert schema_of(empty_url) == before


def test_a_deployment_of_other_migrations_than_the_functions_fails_before_it_does_anything(
    function: ModuleType, stack: CloudFormation, empty_url: str
) -> None:
    function.handler(make_resource_event("Create", stack.url, {"Hash": "1" * 64}), Context())
    assert stack.answers[-1]["Status"] == "FAILED"
    assert "build and deploy both" in stack.answers[-1]["Reason"]
    assert schema_of(empty_url) == [[], []]


def test_delete_drops_nothing_and_needs_no_database(
    function: ModuleType, stack: CloudFormation, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    before = schema_of(empty_url)
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    function.handler(make_resource_event("Delete", stack.url, OURS, PhysicalResourceId="interlock-schema"), Context())
    assert (stack.answers[-1]["Status"], stack.answers[-1]["PhysicalResourceId"]) == ("SUCCESS", "interlock-schema")
    assert schema_of(empty_url) == before


def test_a_database_that_is_away_is_told_within_a_minute(
    function: ModuleType, stack: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    started = time.monotonic()
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    assert stack.answers[-1]["Status"] == "FAILED"
    assert "OperationalError" in stack.answers[-1]["Reason"]
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_database_that_does_not_answer_is_told_within_a_minute(
    function: ModuleType, stack: CloudFormation, empty_url: str, make_proxy: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = make_proxy(empty_url)
    proxy.black_hole()
    parts = psycopg.conninfo.conninfo_to_dict(empty_url)
    silent = psycopg.conninfo.make_conninfo("", **{**parts, "host": "127.0.0.1", "port": proxy.port})
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", silent)
    started = time.monotonic()
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    assert (stack.answers[-1]["Status"], time.monotonic() - started < 60) == ("FAILED", True)


def test_a_migration_that_outlasts_the_function_is_undone_and_told(
    function: ModuleType, stack: CloudFormation, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0001_long.sql").write_text("CREATE TABLE half (id integer); SELECT pg_sleep(60);")
    monkeypatch.setattr(function, "FOLDER", tmp_path)
    event = make_resource_event("Create", stack.url, {"Hash": hash_folder(tmp_path)})
    started = time.monotonic()
    function.handler(event, Context(function.RESERVE_SECONDS + 1))
    assert (stack.answers[-1]["Status"], time.monotonic() - started < 15) == ("FAILED", True)
    assert "more time" in stack.answers[-1]["Reason"]
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,)
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_by_hand_it_says_what_it_applied(function: ModuleType, empty_url: str) -> None:
    assert function.handler({}, None)["applied"][0] == "0001_core.sql"
    assert function.handler({}, Context()) == {"applied": []}


def test_the_first_keys_are_made_beside_the_database(function: ModuleType, empty_url: str) -> None:
    function.handler({}, Context())
    keys = function.handler({"keysFor": "shop"}, Context())["keys"]
    assert set(keys) == {"task-producer", "task-worker", "operator", "metrics", "admin"}
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert connection.execute("SELECT name FROM projects").fetchall() == [("shop",)]
        assert connection.execute("SELECT count(*) FROM keys").fetchone() == (5,)


@pytest.mark.parametrize(
    "event",
    [
        {"keysFor": None},
        {"keysFor": ""},
        {"keysFor": "My Shop"},
        {"keysFor": ["shop"]},
        {"keysfor": "shop"},
        {"keysFor": "shop", "x": 1},
    ],
)
def test_a_call_by_hand_that_is_mistyped_does_nothing(function: ModuleType, empty_url: str, event: dict[str, Any]) -> None:
    function.handler({}, Context())
    with pytest.raises(ValueError, match=r"^keysFor is no project's name: |is not understood: ") as refused:
        function.handler(event, Context())
    assert "\n" not in str(refused.value)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM projects").fetchone() == (0,)


def test_statements_outside_a_transaction_are_resumed(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "0001_table.sql").write_text(
        "CREATE TABLE big (id integer, word text); INSERT INTO big VALUES (1, 'a'), (1, 'b');"
    )
    outside = tmp_path / "0002_indexes.sql"
    outside.write_text(
        "--! no-transaction\n-- Two indexes while everybody works.\n"
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS big_word ON big (word)\n-- :: unique\n"
        "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS big_id ON big (id)\n"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        migrate(empty_url, tmp_path)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert connection.execute("SELECT name FROM migrations").fetchall() == [("0001_table.sql",)]
        invalid = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
        assert connection.execute(invalid).fetchall() == [("big_id",)]
        connection.execute("DELETE FROM big WHERE word = 'b'")
        assert migrate(empty_url, tmp_path) == ["0002_indexes.sql"]
        assert connection.execute(invalid).fetchall() == []
        assert connection.execute("SELECT to_regclass('big_id') IS NOT NULL, to_regclass('big_word') IS NOT NULL").fetchone() == (
            True,
            True,
        )
    assert migrate(empty_url, tmp_path) == []
    outside.write_text("--! no-transaction\nSELECT 1")
    with pytest.raises(MigrationError, match="0002_indexes"):
        migrate(empty_url, tmp_path)


WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = %s"
)


def test_statements_outside_a_transaction_do_not_wait_for_whoever_waits_for_them(empty_url: str, tmp_path: Path) -> None:
    """An index that is made concurrently waits for every older snapshot, and a process that waits for its turn may hold one."""
    (tmp_path / "0001_table.sql").write_text("CREATE TABLE big (id integer); INSERT INTO big VALUES (1);")
    migrate(empty_url, tmp_path)
    (tmp_path / "0002_index.sql").write_text("--! no-transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS big_id ON big (id)\n")
    done: list[list[str]] = []
    runs = [threading.Thread(target=lambda: done.append(migrate(empty_url, tmp_path))) for _ in range(4)]
    with psycopg.connect(empty_url) as writer, psycopg.connect(empty_url, autocommit=True) as looking:
        # The index waits for whoever writes to its table; meanwhile the others come and wait for their turn.
        writer.execute("INSERT INTO big VALUES (2)")
        runs[0].start()
        wait_until(lambda: looking.execute(WAITING, ["virtualxid"]).fetchone() == (1,), 10)
        for run in runs[1:]:
            run.start()
        # Each has asked for its turn at least once; one that waits in the statement is still at it.
        wait_until(lambda: _asking(looking) == 3, 10)
        writer.rollback()
        for run in runs:
            run.join(20)
        stuck = [run for run in runs if run.is_alive()]
        if stuck:
            looking.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            for run in stuck:
                run.join()
    assert not stuck
    assert sorted(done) == [[], [], [], ["0002_index.sql"]]


def _asking(looking: psycopg.Connection[Any]) -> int:
    row = looking.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%advisory%'"
        " AND pid NOT IN (pg_backend_pid(), (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted LIMIT 1))"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_waiting_for_another_migration_ends_with_the_functions_time(
    function: ModuleType, stack: CloudFormation, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it may go on in an environment that is frozen: it would hold everybody's turn."""
    for name, text in (("0001_table.sql", "CREATE TABLE one (id integer)"), ("0002_more.sql", "--! no-transaction\nSELECT 1")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(function, "FOLDER", tmp_path)
        event = make_resource_event("Create", stack.url, {"Hash": hash_folder(tmp_path)})
        with psycopg.connect(empty_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            function.handler(event, Context(function.RESERVE_SECONDS + 1))
            others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            wait_until(lambda others=others, other=other: other.execute(others).fetchone() == (0,), 5)
        assert (stack.answers[-1]["Status"], "more time" in stack.answers[-1]["Reason"]) == ("FAILED", True)
        function.handler({}, Context())


def test_a_roll_back_by_the_old_code_succeeds_while_the_database_is_away(
    function: ModuleType, stack: CloudFormation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CloudFormation does it: the function is old again when its resource is told. Forwards, the same is a failure."""
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    (tmp_path / "0001_core.sql").write_text((MIGRATIONS / "0001_core.sql").read_text())
    first = {"Hash": hash_folder(tmp_path)}
    forwards = make_resource_event("Update", stack.url, OURS, PhysicalResourceId="x", OldResourceProperties=first)
    function.handler(forwards, Context())
    assert stack.answers[-1]["Status"] == "FAILED"
    monkeypatch.setattr(function, "FOLDER", tmp_path)
    function.handler(
        make_resource_event("Update", stack.url, first, PhysicalResourceId="x", OldResourceProperties=OURS), Context()
    )
    assert (stack.answers[-1]["Status"], stack.answers[-1]["PhysicalResourceId"]) == ("SUCCESS", "x")
    assert "roll-back" in stack.answers[-1]["Reason"]


@pytest.mark.parametrize("text", ["Ошибка " * 500, "\x00\n\u2028" * 900, "字" * 5000])
def test_an_answer_is_never_longer_than_cloudformation_takes(
    function: ModuleType, stack: CloudFormation, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(function, "migrate", fail)
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    function.handler(make_resource_event("Create", stack.url, OURS), Context())
    (answer,) = stack.answers
    assert answer["Status"] == "FAILED"
    assert text[:20] in answer["Reason"]
    assert stack.sizes[0] <= 4096
