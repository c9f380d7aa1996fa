"""`interlock keys …` and `interlock projects …`."""

from __future__ import annotations

import uuid

from interlock.settings import KEY_VARIABLES
from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer


def test_a_new_key_is_shown_once_works_and_is_revoked(cli: Cli, here: RunHere) -> None:
    done = cli.run("keys", "new", "night shift", "--kind", "task-producer", expect=0)
    key = done.out.strip()
    assert len(done.out.splitlines()) == 1
    assert key not in done.err
    assert KEY_VARIABLES["task-producer"] in done.err
    own = {"INTERLOCK_PRODUCER_KEY": key}
    cli.run("tasks", "list", "--limit", "1", env=own, expect=0)

    key_id = done.err.split("key ")[1].split()[0]
    listed = here("keys", "list", "--all", expect=0)
    row = next(line for line in listed.out.splitlines() if line.startswith(key_id))
    assert "night shift" in row
    assert "active" in row
    assert key not in listed.out

    assert here("keys", "revoke", key_id, "--json", expect=0).json["revokedAt"]
    assert "before" in here("keys", "revoke", key_id, expect=0).err
    row = next(item for item in here("keys", "list", "--all", "--json", expect=0).json["items"] if item["id"] == key_id)
    assert row["revokedAt"]


def test_a_worker_key_may_be_narrowed(cli: Cli) -> None:
    options = ("--types", "audio/*,demo/hello", "--pools", "gpu", "--worker-ids", "a", "--worker-ids", "b", "--expires-at", "30d")
    made = cli.run("keys", "new", "narrow", "--kind", "task-worker", *options, "--json", expect=0).json
    assert (made["types"], made["pools"], made["workerIds"]) == (["audio/*", "demo/hello"], ["gpu"], ["a", "b"])
    assert made["expiresAt"] > made["createdAt"]
    assert made["key"].startswith("il_")


def test_the_same_idempotency_key_does_not_tell_the_secret_again(cli: Cli) -> None:
    line = ("keys", "new", "once", "--kind", "metrics", "--idempotency-key", str(uuid.uuid4()))
    cli.run(*line, expect=0)
    again = cli.run(*line, expect=10)
    assert "interlock keys revoke" in again.err


def test_a_new_project_and_its_first_key(cli: Cli) -> None:
    name = f"project-{uuid.uuid4().hex[:8]}"
    assert cli.run("projects", "new", name, expect=0).out.split()[0] == name
    assert "there already" in cli.run("projects", "new", name, "--json", expect=0).err
    assert name in [item["name"] for item in cli.run("projects", "list", "--all", "--json").json["items"]]
    made = cli.run("keys", "new", "first", "--kind", "operator", "--project", name, "--json", expect=0).json
    assert made["project"] == name
    own = {"INTERLOCK_OPERATOR_KEY": made["key"], "INTERLOCK_PRODUCER_KEY": "", "INTERLOCK_ADMIN_KEY": ""}
    assert cli.run("tasks", "list", "--json", env=own, expect=0).json["items"] == []
    assert cli.run("keys", "new", "x", "--kind", "operator", "--project", "other", env=own, expect=4).out == ""


def test_a_lost_answer_makes_no_second_key(offline: Cli, scripted: ScriptedServer) -> None:
    scripted.answer("POST", "/v1/keys", Answer(drop=True), Answer(200, {"id": "k1", "kind": "metrics", "duplicate": True}))
    settings = {"INTERLOCK_URL": scripted.url, "INTERLOCK_OPERATOR_KEY": "il_o_1_2"}
    done = offline.run("keys", "new", "x", "--kind", "metrics", env=settings, expect=10)
    first, second = (seen.json["idempotencyKey"] for seen in scripted.seen)
    assert first == second
    assert "k1" in done.err
