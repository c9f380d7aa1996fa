"""Calls whose statements are explained while they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg._queries import PostgresQuery

from interlock_core.db import Database, Row, Step


class Explained(Database):
    """Runs every statement twice: once to be explained and taken back, once for its rows. `plans` holds (name, plan)."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.plans: list[tuple[str, dict[str, Any]]] = []

    async def run(self, *steps: Step, notify: Step | None = None) -> list[list[Row]]:
        found = []
        async with self.connection() as connection, connection.transaction():
            for step in steps:
                async with connection.transaction(force_rollback=True):
                    self.plans.append((step.name, await _explain(connection, step)))
                cursor = await connection.execute(step.text, step.params)  # type: ignore[arg-type]
                found.append(await cursor.fetchall() if cursor.description else [])
        return found

    def plan(self, name: str) -> Plan:
        """The last plan of a statement."""
        return Plan(next(plan for step, plan in reversed(self.plans) if step == name))


async def _explain(connection: psycopg.AsyncConnection[Row], step: Step) -> dict[str, Any]:
    """The plan that the service's own prepared statement has: one for all parameters, where it is not planned anew."""
    query = PostgresQuery(psycopg.adapt.Transformer(connection))
    query.convert(step.text, step.params)
    await connection.execute(b"PREPARE explained AS " + query.query)
    values = [step.params[name] for name in query._order or []]
    mode = "force_generic_plan" if step.prepare else "force_custom_plan"
    await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
    call = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained")
    if values:
        call += sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, values)))
    cursor = await connection.execute(call)
    row = await cursor.fetchone()
    assert row is not None
    await connection.execute("DEALLOCATE explained")
    return dict(row[0][0]["Plan"])


class Plan:
    """A plan as EXPLAIN ANALYZE told it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Every node that was executed."""
        waiting = [self._plan | {"limited": False}]
        while waiting:
            node = waiting.pop()
            limited = node["Node Type"] == "Limit" or (
                node.get("limited", False) and node["Node Type"] in ("LockRows", "Result", "Subquery Scan")
            )
            if node.get("Actual Loops", 1):
                yield node
            for below in node.get("Plans", []):
                below["limited"] = limited
                waiting.append(below)

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    @property
    def scanned(self) -> set[str]:
        """The tables that were read from end to end, also along an index."""
        return {
            node["Relation Name"]
            for node in self.nodes()
            if node["Node Type"] == "Seq Scan"
            or (node["Node Type"] in ("Index Scan", "Index Only Scan") and "Index Cond" not in node and not node["limited"])
        }

    @property
    def rows(self) -> int:
        """The most rows that any one node read, those included that it then left out."""
        return max(_read(node) for node in self.nodes())

    @property
    def widest(self) -> str:
        """What that node does."""
        node = max(self.nodes(), key=_read)
        return " ".join(
            str(node.get(name, "")) for name in ("Node Type", "Relation Name", "Index Name", "Function Name", "CTE Name")
        )

    @property
    def blocks(self) -> int:
        """Pages that were touched by the node (with all below it) that touched most: writes stand beside the root, not below."""
        return max(int(node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)) for node in self.nodes())


def _read(node: dict[str, Any]) -> int:
    return int((node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)) * node.get("Actual Loops", 1))
