"""Nodes that fire the same schedules, one of them killed: every instant once, none left out."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import psycopg
import pytest

from support.dev_service import DevService, StartService
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_every_second_is_fired_once_by_three_nodes_of_which_one_is_killed(
    service: DevService, start_service: StartService
) -> None:
    nodes = [start_service("--database-url", service.info["databaseUrl"]) for _ in range(2)]
    schedule = {"everySeconds": 1, "type": "demo/hello", "schemaVersion": 1, "input": {}}
    with service.client() as client, psycopg.connect(service.info["databaseUrl"], autocommit=True) as connection:
        assert client.put("/v1/schedules/often", json=schedule).status_code == 201

        def fired() -> int:
            row = connection.execute("SELECT count(*) FROM tasks WHERE schedule_name = 'often'").fetchone()
            assert row is not None
            return int(row[0])

        wait_until(lambda: fired() >= 5, 30)
        nodes[0].kill()
        before = fired()
        wait_until(lambda: fired() >= before + 5, 30)
        assert client.post("/v1/schedules/often/pause", json={}).status_code == 200
        due = [row[0] for row in connection.execute("SELECT due_at FROM tasks WHERE schedule_name = 'often' ORDER BY due_at")]
        assert [later - earlier for earlier, later in pairwise(due)] == [timedelta(seconds=1)] * (len(due) - 1)
        shown = client.get("/v1/schedules/often").json()
        assert (shown["fired"], shown["missed"]) == (len(due), 0)
