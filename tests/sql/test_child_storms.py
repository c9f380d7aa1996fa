"""Many children with large results: every end looks whether it was the last one, and reads no result for that."""

from __future__ import annotations

import random

from sql.explained import Explained
from support.play import Play
from support.runs import Runs

CHILDREN = 12


async def test_an_end_that_is_not_the_last_reads_no_results(play: Play, runs: Runs, explained: Explained) -> None:
    attempt = await play.run()
    names = [f"kid-{n}" for n in range(CHILDREN)]
    for name in names:
        await runs.child(attempt, name)
    await runs.suspend(attempt, "gather", children=names)
    *kids, before, last = await play.claim(type="demo/child", slots=CHILDREN)
    chance = random.Random(1)
    for kid in kids:
        await play.complete(kid, result=f"{chance.getrandbits(800_000):x}")  # 200 kB that nothing makes smaller
    play.http._app.state.database = explained
    await play.complete(before, result=1)
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    assert explained.plan("resume.resume").blocks < 20 * CHILDREN
    await play.complete(last, result=2)
    ends = (await runs.steps(attempt["taskId"]))["gather"]["output"]["children"]
    assert [(end["name"], "result" in end) for end in ends] == [(name, False) for name in names]
