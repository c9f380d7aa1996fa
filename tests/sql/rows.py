"""A look at the rows beside the service."""

from __future__ import annotations

from typing import Any

import psycopg


class Rows:
    """A connection of the test's own, in autocommit mode: it sees what is committed, and nothing else."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def all(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, or none of a command."""
        cursor = self.connection.execute(text, params or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str, *params: Any) -> Any:
        """The one value of a query."""
        return self.all(text, *params)[0][0]

    def task(self, task_id: str) -> dict[str, Any]:
        """A task's row as it is stored."""
        found: dict[str, Any] = self.value("SELECT to_jsonb(t) FROM tasks t WHERE id = %s", task_id)
        return found

    def kinds(self, task_id: str) -> list[str]:
        """The kinds of a task's events in order; their seqs are gapless."""
        events = self.all("SELECT seq, kind FROM journal WHERE task_id = %s ORDER BY seq", task_id)
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        return [kind for _, kind in events]

    def fill(self, count: int, **columns: str) -> None:
        """Inserts `count` tasks of the project `test`, without their events; `columns` are SQL expressions, also of `n`."""
        given = {
            "id": "gen_random_uuid()",
            "project": "'test'",
            "type": "'demo/hello'",
            "schema_version": "1",
            "pool": "'default'",
            "status": "'queued'",
            "priority": "0",
            "input": "'{}'",
            "created_at": "app_now()",
            "due_at": "app_now()",
            "effect_scope": "gen_random_uuid()",
            **columns,
        }
        self.all(f"INSERT INTO tasks ({', '.join(given)}) SELECT {', '.join(given.values())} FROM generate_series(1, {count}) n")
