"""scripts/dev as its user meets it: one process that serves everything, remembers its keys, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import psycopg
import pytest

import dev
from interlock_core.errors import Unavailable
from support.dev_service import DevService, StartService
from support.owner import children_of, is_alive, kill_all
from support.waiting import wait_until

KINDS = ["task-producer", "task-worker", "operator", "metrics", "admin"]


def submit(service: DevService, name: str) -> str:
    with service.client() as client:
        answer = client.post("/v1/tasks", json={"type": "demo/hello", "schemaVersion": 1, "input": {"name": name}})
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["id"]
    return task_id


@pytest.mark.slow
def test_dev_json_says_where_and_with_which_keys(service_with_database: DevService) -> None:
    path = service_with_database.data / "dev.json"
    assert path.stat().st_mode & 0o777 == 0o600
    info = json.loads(path.read_text())
    assert list(info) == ["serviceUrl", "streamUrl", "databaseUrl", "project", "keys"]
    assert sorted(info["keys"]) == sorted(KINDS)
    assert info["serviceUrl"] in service_with_database.output.read_text()
    with psycopg.connect(info["databaseUrl"]) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (0,)
    for kind in KINDS:
        with service_with_database.client(kind) as client:
            assert client.get("/v1/config").status_code == 200


def test_sigterm_stops_everything_within_10_seconds_with_streams_open(service_with_database: DevService) -> None:
    service = service_with_database
    below = children_of(service.pid)
    assert len(below) > 2  # the guard, the database and its own
    query = {"workerId": "w", "instanceId": "i", "pool": "default", "types": "demo/hello@1"}
    with service.client("task-worker") as client, client.stream("GET", "/v1/stream", params=query) as stream:
        assert stream.status_code == 200
        next(stream.iter_bytes())
        assert service.terminate() < 10
    wait_until(lambda: not [pid for pid in below if is_alive(pid)], timeout=2)


def test_kill_9_loses_nothing_and_the_next_start_recovers_with_the_same_keys(service_with_database: DevService) -> None:
    service = service_with_database
    before = dict(service.info)
    below = children_of(service.pid)
    ids = [submit(service, f"n{n}") for n in range(20)]
    service.kill()
    service.restart()
    assert service.info == before
    with service.client() as client:
        assert all(client.get(f"/v1/tasks/{task_id}").json()["status"] == "queued" for task_id in ids)
    assert not [pid for pid in below if is_alive(pid)]


@pytest.mark.slow
def test_kill_9_of_the_database_too_loses_nothing(service_with_database: DevService) -> None:
    service = service_with_database
    ids = [submit(service, f"n{n}") for n in range(20)]
    kill_all([*children_of(service.pid), service.pid])
    service.kill()
    service.restart()
    with service.client() as client:
        assert all(client.get(f"/v1/tasks/{task_id}").json()["status"] == "queued" for task_id in ids)


@pytest.mark.slow
def test_the_end_of_the_database_ends_the_service_with_a_reason(service_with_database: DevService) -> None:
    service = service_with_database
    guard = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()[0]
    postmaster = int(Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    assert service.wait(15) == 1
    assert "postgres.log" in service.output.read_text()


def test_a_second_node_shares_the_first_ones_database(service: DevService, start_service: StartService) -> None:
    second = start_service("--database-url", service.info["databaseUrl"])
    assert second.url != service.url
    task_id = submit(service, "Ada")
    with second.client("operator") as client:
        assert client.get(f"/v1/tasks/{task_id}").json()["status"] == "queued"


def test_one_data_folder_serves_one_process(service: DevService) -> None:
    told = run_dev("--port", "0", "--data", service.data, "--database-url", service.info["databaseUrl"])
    assert f"in use by process {service.pid}" in told
    assert "--data" in told
    assert httpx.get(service.url + "/readyz").status_code == 200


def run_dev(*arguments: str | Path) -> str:
    """What scripts/dev says on stderr when it cannot start."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "dev"
    run = subprocess.run([script, *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "Traceback" not in run.stderr
    return run.stderr


@pytest.mark.slow
def test_what_stands_in_the_way_is_named(tmp_path: Path, database_url: str) -> None:
    data = tmp_path / "data"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"port {port}" in run_dev("--port", port, "--data", data, "--database-url", database_url)
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} cannot be used" in run_dev("--port", "0", "--data", tmp_path / "file")
    assert "'70000' is not a port" in run_dev("--port", "70000", "--data", data)


def test_an_unusable_database_is_named_without_its_password(tmp_path: Path) -> None:
    for url, said in (
        ("postgresql://u:secret-word@127.0.0.1:1/x", "127.0.0.1"),
        ("secret-word of mine", "--database-url cannot be read"),
    ):
        told = run_dev("--port", "0", "--data", tmp_path / "data", "--database-url", url)
        assert said in told
        assert "secret-word" not in told


def test_a_database_that_falls_away_at_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(*_: object) -> int:
        raise Unavailable("the database cannot be reached: ConnectionTimeout")

    monkeypatch.setattr(dev, "prepare_database", lambda _: None)  # it was there a moment ago
    monkeypatch.setattr(dev, "configure", lambda *_: None)
    words = ["--port", "0", "--data", str(tmp_path), "--database-url", "postgresql://127.0.0.1:1/none"]
    assert dev.run_host("scripts/dev", dev.make_parser("scripts/dev", "").parse_args(words), serve) == 1
    assert capsys.readouterr().err == "scripts/dev: the database cannot be reached: ConnectionTimeout\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_stop_it_too(service: DevService, number: int) -> None:
    os.kill(service.pid, number)
    assert service.wait(10) == 0


@pytest.mark.slow
def test_the_demo_shows_a_real_task_and_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "dev"
    output = tmp_path / "output"
    with output.open("wb") as file:
        command = [script, "--port", "0", "--data", tmp_path / "data", "--demo"]
        environment = {**os.environ, "CI": "true"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    try:
        wait_until(lambda: "Ctrl-C here stops" in output.read_text() or process.poll() is not None, timeout=60)
        told = output.read_text()
        assert "Hello, Ada!" in told
        assert told.count("succeeded") >= 2
        assert "FAILED" not in told
        below = children_of(process.pid)
        assert len(below) > 5
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does at Ctrl-C
        assert process.wait(10) == 0, output.read_text()
        assert not [pid for pid in below if is_alive(pid)]
    finally:
        process.kill()
        process.wait()
