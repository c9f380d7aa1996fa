"""What a shell offers after Tab: commands, options, and names of the service and of the file of profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdk.cli.command import Cli
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live

PROTOCOLS = {
    "bash": lambda line: {"COMP_WORDS": "\n".join(line.split(" ")), "COMP_CWORD": str(line.count(" "))},
    "zsh": lambda line: {"_TYPER_COMPLETE_ARGS": line},
    "fish": lambda line: {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


def offered(cli: Cli, line: str, shell: str = "bash") -> list[str]:
    """What the shell's script asks of the command, and gets."""
    env = {"_INTERLOCK_COMPLETE": f"complete_{shell}", **PROTOCOLS[shell](line)}
    done = cli.run(env=env, expect=0)
    assert done.err == ""
    return [line for line in done.out.splitlines() if line]


@pytest.mark.parametrize("shell", PROTOCOLS)
def test_commands_and_options_are_offered(offline: Cli, shell: str) -> None:
    found = " ".join(offered(offline, "interlock tasks re", shell))
    assert all(word in found for word in ("rerun", "resolve", "resume"))
    assert "cancel" not in found
    assert "--idempotency-key" in " ".join(offered(offline, "interlock tasks submit a/b --idem", shell))


def test_names_of_the_service_are_offered(cli: Cli, live: Live) -> None:
    worker = live.start(lambda inp, ctx: inp)
    live.wait(live.submit())
    head = live.type[:-2]
    assert live.type in offered(cli, f"interlock tasks submit {head}")
    assert live.type in offered(cli, f"interlock tasks list --type {head}")
    assert f"{live.type}@1" in offered(cli, f"interlock tasks pause {head}")
    assert worker.worker_id in offered(cli, f"interlock workers drain {worker.worker_id[:-1]}")


def test_profiles_are_offered(offline: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config" / "interlock" / "profiles.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"box": {}, "big box; rm": {}, "home": {}}))
    assert offered(offline, "interlock tasks list --profile b") == ["box"]
    path.write_text("{")
    assert offered(offline, "interlock tasks list --profile b") == []


def test_what_a_shell_could_take_for_a_command_is_not_offered(offline: Cli, scripted: ScriptedServer) -> None:
    names = ["a/good", "a/$(reboot)", "a/`x`", "a/b;c", "a/\x1b[31m", "a/'q'"]
    items = [{"type": name, "schemaVersion": 1} for name in names] + [{"type": "a/two", "schemaVersion": 2}]
    scripted.answer("GET", "/v1/task-types", Answer(200, {"items": items, "nextCursor": None}))
    line = f"interlock tasks submit --url {scripted.url} --key il_p_1_2 a/"
    assert offered(offline, line) == ["a/good", "a/two@2"]


def test_without_a_service_nothing_is_offered_and_nothing_said(offline: Cli) -> None:
    assert offered(offline, "interlock tasks submit a") == []
    assert offered(offline, "interlock workers show --url http://127.0.0.1:9 --key k a") == []


def test_bash_completes_by_the_script(offline: Cli) -> None:
    ask = 'COMP_WORDS=(interlock tasks jou); COMP_CWORD=2; _interlock_completion interlock; echo "${COMPREPLY[@]}"'
    done = offline.shell(f'eval "$(interlock completion bash)"; complete -p interlock; {ask}')
    assert done.stderr == b""
    assert done.out.splitlines() == ["complete -o default -F _interlock_completion interlock", "journal"]


@pytest.mark.parametrize(("shell", "words"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete ")])
def test_each_shell_has_a_script(offline: Cli, shell: str, words: str) -> None:
    done = offline.run("completion", shell, "--json", expect=0)
    assert done.json["shell"] == shell
    assert words in done.json["script"]
    assert done.json["script"] in offline.run("completion", shell, expect=0).out
    assert "powershell" not in offline.run("completion", "--help", expect=0).out
