"""B54: a worker that dies at every start, under a supervisor that starts it again at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from interlock import starts
from sdk.live import Live
from support.waiting import wait_until

DYING = """
import threading
worker = TaskWorker(worker_id=TYPE.replace("/", "-"), spool=os.environ["SPOOL"])
@worker.handle(TYPE, 1, effect_safety="pure")
def work(inp, ctx): ...
def die():
    while worker._life is None: time.sleep(0.01)
    worker._life.settled.wait()
    os._exit(9)
if os.environ.get("DIE") == "yes": threading.Thread(target=die, daemon=True).start()
"""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(starts.time, "time", lambda: self.now)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_b54_starts_in_a_row_wait_ever_longer(tmp_path: Path, moved: Clock) -> None:
    delays, at = [], []
    for number in range(40):
        start = starts.note_start(tmp_path, f"i{number}")
        assert start.before == (f"i{number - 1}" if number else None)
        assert start.row == number
        moved.now += start.delay
        at.append(moved.now)  # it registers, and dies within half a second
        delays.append(start.delay)
        moved.now += 0.5
    assert delays[: starts.FREE] == [0] * starts.FREE
    assert all(0.8 <= delay / min(2.0**n, 30) <= 1 for n, delay in enumerate(delays[starts.FREE :]))
    for number in range(12, 40):
        assert sum(at[number] - 60 < other <= at[number] for other in at) <= 3  # a minute


def test_b54_a_row_ends_with_a_longer_life_or_a_drain(tmp_path: Path, moved: Clock) -> None:
    for number in range(8):
        start = starts.note_start(tmp_path, f"i{number}")
    assert start.delay
    moved.now += starts.SOON + start.delay + 1
    assert starts.note_start(tmp_path, "later").row == 0
    for number in range(8):
        starts.note_start(tmp_path, f"j{number}")
    starts.forget_start(tmp_path)
    assert starts.note_start(tmp_path, "after a drain") == starts.Start(None, 0, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 4096, '{"instanceId": 1, "at": "x"}', '{"instanceId": "i", "at": 1e400, "row": 1, "delay": 0}'),
        '{"instanceId": "i", "at": 0, "row": Infinity, "delay": Infinity}',
    ],
    ids=lambda text: text[:60],
)
def test_a_note_that_nobody_understands_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / starts.NAME).write_text(text)
    assert starts.note_start(tmp_path, "one").row == 0
    assert starts.note_start(tmp_path, "two") == starts.Start("one", 1, 0.0)
    assert (tmp_path / starts.NAME).stat().st_mode & 0o777 in (0o600, 0o644)
    starts.note_start(tmp_path / "missing", "three")


@pytest.mark.slow
def test_b54_a_worker_that_dies_at_every_start_is_slowed_down_and_leaves_one_process_in_the_fleet(live: Live) -> None:
    spool = str(live.folder / "spool-9")
    for number in range(starts.FREE + 2):
        process = live.process(DYING, SPOOL=spool, DIE="yes")
        assert process.wait(40) == 9, process.output.read_text()
        told = "times in a row, and never ended as it was told to" in process.output.read_text()
        assert told == (number >= starts.FREE)
    worker = live.client("operator").request("GET", f"/v1/workers/{live.type.replace('/', '-')}")
    assert len(worker["instances"]) == 1  # each took the one before it off the list
    last = live.process(DYING, SPOOL=spool)
    assert live.wait(live.submit(), 40).status == "succeeded"
    last.signal(signal.SIGTERM)
    assert last.wait() == 0
    assert not (live.folder / "spool-9" / starts.NAME).exists()
    after = live.process(DYING, SPOOL=spool)
    assert live.wait(live.submit(), 40).status == "succeeded"
    assert "in a row" not in after.output.read_text()


def test_b54_a_drain_does_not_wait_for_a_start_that_does(live: Live) -> None:
    spool = live.folder / "spool-9"
    spool.mkdir()
    for number in range(starts.FREE + 5):
        starts.note_start(spool, f"i{number}")
    process = live.process(DYING, SPOOL=str(spool))
    wait_until(lambda: "times in a row" in process.output.read_text(), 20)
    process.signal(signal.SIGTERM)
    assert process.wait(10) == 0
