"""What the database was asked for while something ran: transactions that wrote, and bytes of its log, without what runs beside anyway."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

import psycopg

IDLE_SECONDS = 4.0


@dataclass
class Costs:
    """Counts since `start`, less the service's own rhythm (the sweep, the stream), as it was measured before."""

    commits: float = 0.0
    log_bytes: float = 0.0


class Meter:
    """Reads the counts of one database."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        before = self._read()
        time.sleep(IDLE_SECONDS)
        after = self._read()
        self._rhythm = [(b - a) / (after[2] - before[2]) for a, b in zip(before[:2], after[:2], strict=True)]

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        after = self._read()
        seconds = after[2] - self._before[2]
        found = [b - a - rhythm * seconds for a, b, rhythm in zip(self._before[:2], after[:2], self._rhythm, strict=True)]
        self.costs = Costs(*found)
        self._connection.close()

    def _read(self) -> tuple[float, float, float]:
        row = self._connection.execute(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::numeric, pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        ).fetchone()
        assert row is not None
        return float(row[0]), float(row[1]), time.monotonic()
