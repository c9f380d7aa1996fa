"""What the pages tell a newcomer to write and to type, written and typed: /tasks.md and the tour of the README."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from interlock_core.errors import Problem
from support.dev_service import ROOT, DevService, StartService
from support.tour import Names, Shell, follow, read_blocks
from support.waiting import wait_until

TASKS = ROOT / "docs" / "tasks.md"
README = ROOT / "README.md"


def environment(service: DevService, folder: Path) -> dict[str, str]:
    names = {"task-producer": "PRODUCER", "task-worker": "WORKER", "operator": "OPERATOR"}
    keys = {f"INTERLOCK_{name}_KEY": service.key(kind) for kind, name in names.items()}
    return {
        "INTERLOCK_URL": service.url,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        **keys,
    }


def ready_workers(service: DevService) -> int:
    with service.client("operator") as client:
        return sum(worker["state"] in ("ready", "full") for worker in client.get("/v1/workers").json()["items"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tasks_page_is_what_happens(service: DevService, tmp_path: Path) -> None:
    folder = tmp_path / "tour"
    folder.mkdir()
    just_started, known = False, 0

    def before(command: str, shown: str) -> str:
        nonlocal just_started, known
        if just_started:
            wait_until(lambda: ready_workers(service) > known, 30)
        just_started, known = command.endswith("&"), ready_workers(service)
        return command

    with Shell(folder, environment(service, folder)) as shell:
        typed = follow(TASKS, folder, shell, before)
    for what in ("curl ", "python producer.py", "interlock tasks submit", "interlock tasks resolve"):
        assert [command for command in typed if what in command], what


def inside_its_effect(client: httpx.Client) -> bool:
    """Whether a task runs that is in the middle of what must not happen twice: its handler's, which has said so, or a step's."""
    running = client.get("/v1/tasks?status=running").json()["items"]
    steps = [step for task in running for step in client.get(f"/v1/tasks/{task['id']}/steps").json()["items"]]
    charging = [task["id"] for task in running if task["attempt"]["effectSafety"] == "non-idempotent"]
    told = [event["kind"] for task_id in charging for event in client.get(f"/v1/tasks/{task_id}/journal").json()["items"]]
    return "log" in told or any(step["status"] == "started" for step in steps)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tour_of_the_readme_is_what_happens(start_service: StartService, database_url: str, tmp_path: Path) -> None:
    """Its three terminals are one here: what stays in the foreground of one runs behind."""
    folder = tmp_path / "tour"
    folder.mkdir()
    service = start_service("--database-url", database_url)

    def before(command: str, shown: str) -> str | None:
        if command == "./scripts/dev":
            assert Names().meets("…\n" + shown, service.output.read_text().rstrip("\n"))
            return None
        if command.startswith("./scripts/"):
            return None
        if command.startswith("interlock worker run"):
            behind = f"{command} > worker.log 2>&1 & disown; until grep Ctrl-C worker.log 2> grep.log; do sleep 0.1; done"
            return f"[ -z $! ] || kill $! 2> kill.log; rm -f worker.log; {behind}"  # it may have been killed before
        if "submit" in command:
            wait_until(lambda: ready_workers(service), 30)
        if command.startswith("kill -9"):
            with service.client() as client:
                wait_until(lambda: inside_its_effect(client), 30)
            return "kill -9 $!"
        return command

    with Shell(folder, environment(service, folder)) as shell:
        typed = follow(README, folder, shell, before)
    assert [command for command in typed if command.startswith("kill -9")]
    assert [command for command in typed if "resolve" in command]


@pytest.mark.parametrize(
    "page", [TASKS, README, ROOT / "sdk" / "python" / "README.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_python_block_of_a_page_is_python(page: Path) -> None:
    blocks = [block.text for block in read_blocks(page) if block.language == "python"]
    assert blocks
    for text in blocks:
        compile(text, page.name, "exec")


def _codes(problem: type[Problem]) -> set[str]:
    return {problem.code}.union(*(_codes(child) for child in problem.__subclasses__()))


def test_the_tasks_page_says_what_to_do_about_every_code() -> None:
    """Those of refusals, and those of a task's failure, as the protocol's page lists them."""
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = protocol.partition("## 12. Codes")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")]
    wanted = _codes(Problem) | {code for row in rows for code in re.findall(r"`([A-Z][A-Z_]+)`", row)}
    page = TASKS.read_text(encoding="utf-8").partition("## Errors, and what to do")[2].partition("\n## ")[0]
    told = {code for row in page.splitlines() if row.startswith("| `") for code in re.findall(r"`([A-Z_]+)`", row.split("|")[1])}
    assert wanted - told == set()
