"""The tree of commands. Each module is imported when a command of it is called, or when a help has to list it.

A command is `module:function` of this folder; what the function takes beside its Session is told by its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Union

from typer.core import TyperGroup

from interlock.cli.options import HELP, make_command
from interlock.cli.plain_values import convert_late


@dataclass(frozen=True)
class Group:
    """Commands below one word."""

    help: str
    places: Mapping[str, Place]


Place = Union[str, Group]  # noqa: UP007 (a name of a type below it: 3.10 cannot join it by |)

TREE: Mapping[str, Place] = {
    "audit": "controls:audit",
    "login": "login:login",
    "logout": "login:logout",
    "completion": "completion:completion",
    "tasks": Group(
        "Submit tasks, look at them, settle them.",
        {
            "list": "tasks:list_tasks",
            "get": "tasks:get",
            "journal": "tasks:journal",
            "submit": "submit:submit",
            "watch": "watch:watch",
            "top": "top:top",
            "cancel": "settle:cancel",
            "rerun": "settle:rerun",
            "resolve": "settle:resolve",
            "signal": "runs:signal",
            "steps": "runs:steps",
            "children": "runs:children",
            "workers": "fleet:workers",
            "types": "fleet:types",
            "pause": "controls:pause",
            "resume": "controls:resume",
            "doctor": "doctor:doctor",
            "bulk": Group(
                "Cancel or rerun every task of a filter.",
                {"cancel": "bulk:bulk_cancel", "rerun": "bulk:bulk_rerun"},
            ),
        },
    ),
    "schedules": Group(
        "See, make, pause and trigger what is submitted by itself.",
        {
            "list": "schedules:list_schedules",
            "show": "schedules:show",
            "put": "schedules:put",
            "delete": "schedules:delete",
            "pause": "schedules:pause",
            "resume": "schedules:resume",
            "trigger": "schedules:trigger",
        },
    ),
    "worker": Group("Run workers.", {"run": "worker:run_worker"}),
    "workers": Group(
        "See the workers, drain them, forget them.",
        {"list": "fleet:workers", "show": "workers:show", "drain": "workers:drain", "remove": "workers:remove"},
    ),
    "keys": Group(
        "Make, list, rotate and revoke keys.",
        {"new": "keys:new_key", "list": "keys:list_keys", "revoke": "keys:revoke_key", "rotate": "keys:rotate_key"},
    ),
    "profiles": Group("See the profiles that login writes.", {"list": "login:list_profiles"}),
    "projects": Group("Make and list projects.", {"new": "keys:new_project", "list": "keys:list_projects"}),
    "limits": Group(
        "Limit the tasks that hold a concurrency key, and the rate of submits.",
        {
            "list": "controls:list_limits",
            "set": "controls:set_limit",
            "drop": "controls:drop_limit",
            "rate": "controls:set_rate",
        },
    ),
}


class Commands(Mapping[str, Any]):
    """The commands of one group by their names, each made when it is first looked up.

    `ready` is called when a command has been chosen and all that it needs is imported.
    """

    def __init__(self, places: Mapping[str, Place], ready: Callable[[], None]) -> None:
        self._places = places
        self._ready = ready
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name, self._places[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _make(self, name: str, place: Place) -> Any:
        if isinstance(place, Group):
            below: Any = Commands(place.places, self._ready)
            group = TyperGroup(
                name=name, commands=below, help=place.help, no_args_is_help=True, rich_markup_mode=None, context_settings=HELP
            )
            return convert_late(group)
        module, _, function = place.partition(":")
        return make_command(name, getattr(import_module(f"interlock.cli.{module}"), function), self._ready)
