"""The service's settings, read once from `INTERLOCK_SERVER_…` variables (protocol.md §13). The environment is touched only here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "INTERLOCK_SERVER_"
# How EventBridge writes an interval: a template can pass on the text of a schedule, and cannot compute with it.
_RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}


class SettingsError(ValueError):
    """A setting is unknown, missing or not readable; the message names the variable."""


@dataclass(frozen=True)
class Settings:
    """What an operator may choose. Durations are seconds, sizes bytes."""

    database_url: str = ""
    database_secret_arn: str = ""
    database_host: str = ""
    database_iam: bool = False
    pool_size: int = 1
    stream_url: str = ""
    retention_seconds: float = 7 * 86400
    idempotency_ttl_seconds: float = 86400
    worker_wait_limit_seconds: float = 86400
    min_lease_seconds: float = 10
    offline_seconds: float = 45
    function_wait_seconds: float = 0
    poll_seconds: float = 5
    stream_poll_seconds: float = 30
    idle_poll_seconds: float = 60
    sweep_seconds: float = 60
    sweep_stay_seconds: float = 0
    key_cache_seconds: float = 2
    prepare_statements: bool = True
    stack: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads every `INTERLOCK_SERVER_…` variable.

        Raises SettingsError for an unknown name (a typo must not be silently ignored) or a value of the wrong kind.
        """
        env = os.environ if environment is None else environment
        known = {PREFIX + f.name.upper(): f for f in fields(cls)}
        values: dict[str, object] = {}
        for name, text in env.items():
            if not name.startswith(PREFIX):
                continue
            field = known.get(name)
            if field is None:
                raise SettingsError(f"{name} is not a setting; known are {', '.join(sorted(known))}")
            values[field.name] = _read(name, text, str(field.type))
        return cls(**values)  # type: ignore[arg-type]  # each value was read by its field's type


@dataclass(frozen=True)
class Platform:
    """What AWS tells a function or a container of the role that it runs as, by its own variables."""

    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    container_credentials: str = ""
    endpoint: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Platform:
        """Reads the `AWS_…` variables. A function's credentials change while it lives, so this is read when they are needed."""
        env = os.environ if environment is None else environment
        return cls(
            region=env.get("AWS_REGION", ""),
            access_key=env.get("AWS_ACCESS_KEY_ID", ""),
            secret_key=env.get("AWS_SECRET_ACCESS_KEY", ""),
            session_token=env.get("AWS_SESSION_TOKEN", ""),
            container_credentials=env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", ""),
            endpoint=env.get("AWS_ENDPOINT_URL_SECRETS_MANAGER", ""),
        )


def _read(name: str, text: str, kind: str) -> object:
    try:
        if kind == "int":
            value: float = int(text)
        elif kind == "float":
            rate = _RATE.fullmatch(text)
            value = float(text) if rate is None else int(rate[1]) * _UNIT_SECONDS[rate[2]]
        elif kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        else:
            return text
    except (ValueError, KeyError):
        raise SettingsError(f"{name} must be of type {kind}, not {text!r}") from None
    if not 0 <= value < 1e10:
        raise SettingsError(f"{name} must be between 0 and 1e10, not {text!r}")
    return value
