"""Children whose parent has settled: a rerun that keeps them waits for what became of them."""

from __future__ import annotations

from interlock_core import leases
from interlock_core.settings import Settings
from support.clock import Clock
from support.play import Play
from support.runs import Runs

WEEK = 8 * 86_400  # what has settled before it is not kept any longer


async def test_a_rerun_waits_for_a_child_that_ended_long_before_its_parent(play: Play, runs: Runs, clock: Clock) -> None:
    database = play.http._app.state.database
    attempt = await play.run(leaseSeconds=3600)
    child = await runs.child(attempt, "kid")
    await runs.end_child(result="k")
    await runs.step(attempt, "last", output=1)
    clock.advance(WEEK)
    await play.complete(attempt, "failed", error={"code": "BAD", "message": "too late"})
    await leases.retain(database, Settings())
    rerun = (await play.http.producer.post(f"/v1/tasks/{attempt['taskId']}/rerun", json={"fromStep": "last"})).json()
    again = await runs.again()
    assert again["taskId"] == rerun["id"]
    assert (await runs.suspend(again, "gather", children=["kid"]))["taskStatus"] == "queued"
    ends = (await runs.steps(rerun["id"]))["gather"]["output"]["children"]
    assert [(end["name"], end["taskId"], end["result"]) for end in ends] == [("kid", child, "k")]
    await play.cancel(rerun["id"])
    clock.advance(WEEK)
    await leases.retain(database, Settings())  # the parents go first, and the children with them
    assert (await play.http.producer.get(f"/v1/tasks/{child}")).status_code == 404
