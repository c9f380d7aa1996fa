"""`interlock schedules …` against the service."""

from __future__ import annotations

from interlock.cli.schedules import rule_text
from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live


def test_a_schedule_from_put_to_delete(cli: Cli, here: RunHere, live: Live) -> None:
    name = live.type.replace("/", "-")
    put = ("schedules", "put", name, f"{live.type}@1", "--cron", "0 2 * * *", "--time-zone", "Europe/Berlin", "-i", '{"n": 1.10}')
    shown = cli.run(*put, "--overlap", "skip", "--tag", "a=b", "--json", expect=0).json
    assert (shown["cron"], shown["timeZone"], shown["overlap"], shown["tags"]) == (
        "0 2 * * *",
        "Europe/Berlin",
        "skip",
        {"a": "b"},
    )
    again = here(*put, "--overlap", "skip", "--tag", "a=b", expect=0)
    assert "nothing changed" in again.err
    assert "0 2 * * * (Europe/Berlin)" in again.out
    assert '{"n":1.1}' in again.out
    listed = here("schedules", "list", "--all", expect=0).out
    assert name in listed
    assert name in [item["name"] for item in here("schedules", "list", "--all", "--json", expect=0).json["items"]]
    assert "paused" in here("schedules", "pause", name, expect=0).out
    assert "nothing changed" in here("schedules", "pause", name, expect=0).err
    first = here("schedules", "trigger", name, "--idempotency-key", name, expect=0).out.split()[0]
    assert here("schedules", "trigger", name, "--idempotency-key", name, "--json", expect=0).json["id"] == first
    assert here("tasks", "list", "--schedule", name, "--json", expect=0).json["items"][0]["id"] == first
    assert "active" in here("schedules", "resume", name, expect=0).out
    assert "next" in here("schedules", "show", name, expect=0).out
    assert here("schedules", "delete", name, expect=0).out == f"{name} is gone\n"
    again = here("schedules", "delete", name, expect=0)
    assert again.out == ""
    assert f"there was no {name}" in again.err
    assert here("schedules", "show", name, "--json", expect=4).json["error"]["code"] == "NOT_FOUND"


def test_a_schedule_of_a_worker_is_named_with_its_owner(here: RunHere, live: Live) -> None:
    owner = live.type.replace("/", "-")
    here("schedules", "put", "nightly", live.type, "--every", "2h", "--owner", owner, expect=0)
    assert "--owner" in here("schedules", "show", "nightly", expect=4).err
    assert "named with --owner" in here("schedules", "delete", "nightly", expect=0).err
    assert here("schedules", "show", "nightly", "--owner", owner, "--json", expect=0).json["everySeconds"] == 7200
    assert "every 7200 s" in here("schedules", "list", "--owner", owner, expect=0).out
    here("schedules", "delete", "nightly", "--owner", owner, expect=0)
    assert "there are none" in here("schedules", "list", "--owner", owner, expect=0).err


def test_an_interval_of_a_month_is_told_in_digits() -> None:
    assert rule_text({"everySeconds": 2_592_000.0}) == "every 2592000 s"
    assert rule_text({"everySeconds": 1.5}) == "every 1.5 s"


def test_wrong_rules_are_told_before_or_by_the_service(here: RunHere) -> None:
    assert "--cron or --every" in here("schedules", "put", "n", "a/b", expect=2).err
    assert "--cron or --every" in here("schedules", "put", "n", "a/b", "--cron", "* * * * *", "--every", "5", expect=2).err
    refused = here("schedules", "put", "n", "a/b", "--cron", "0 0 31 4 *", "--json", expect=4).json["error"]
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("INVALID_REQUEST", "/cron")


def test_a_trigger_without_an_answer_names_its_key(run_here: RunHere, scripted: ScriptedServer) -> None:
    scripted.answer("POST", "/v1/schedules/x/trigger", Answer(drop=True))
    place = ("--url", scripted.url, "--key", "il_p_1_2", "--patience", "0.3")
    done = run_here("schedules", "trigger", "x", *place, expect=3)
    assert f"--idempotency-key {scripted.seen[0].json['idempotencyKey']}" in done.err
