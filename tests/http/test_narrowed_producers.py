"""A producer's key that is narrowed to types changes tasks of these types only; it reads all of its project."""

from __future__ import annotations

from support.play import Play


async def test_a_narrowed_producer_changes_its_types_only(play: Play) -> None:
    narrowed = play.http.use(await play.http.make_key("task-producer", types=["audio/*"]))
    calls = {"cancel": {}, "rerun": {}, "signals": {"name": "go", "payload": 1, "signalKey": "k"}}
    other = await play.submit(type="video/cut")
    for call, body in calls.items():
        answer = await narrowed.post(f"/v1/tasks/{other['id']}/{call}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED"), call
        assert "video/cut" in answer.json()["detail"]
        gone = await narrowed.post(f"/v1/tasks/019a0000-0000-7000-8000-000000000000/{call}", json=body)
        assert gone.status_code == 404
    assert (await narrowed.get(f"/v1/tasks/{other['id']}")).json()["status"] == "queued"
    own = await play.submit(type="audio/cut")
    for call, status in (("signals", 201), ("cancel", 200), ("rerun", 201)):
        assert (await narrowed.post(f"/v1/tasks/{own['id']}/{call}", json=calls[call])).status_code == status
