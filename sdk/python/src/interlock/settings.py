"""Where a client finds its URL and key: arguments first, then the environment, then a profile.

This is the only file that reads the environment. A profile is an entry of `profiles.json` in the configuration folder
(`$XDG_CONFIG_HOME/interlock`, else `~/.config/interlock`): `{"<name>": {"url": "…", "keys": {"<kind>": "…"}}}`;
`INTERLOCK_PROFILE` chooses one, else the one named `default`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from interlock.errors import ConfigurationError

KeyKind = Literal["task-producer", "task-worker", "operator", "metrics", "admin"]

KEY_VARIABLES: dict[str, str] = {
    "task-producer": "INTERLOCK_PRODUCER_KEY",
    "task-worker": "INTERLOCK_WORKER_KEY",
    "operator": "INTERLOCK_OPERATOR_KEY",
    "metrics": "INTERLOCK_METRICS_KEY",
    "admin": "INTERLOCK_ADMIN_KEY",
}


class Secret:
    """A key that shows itself only to who asks for it by name."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError("a key is not pickled")


def profiles_path() -> Path:
    """The file with the profiles; it need not exist."""
    root = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(root) / "interlock" / "profiles.json"


def state_folder() -> Path:
    """The folder in which workers keep their spools by default."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "interlock"


def given_service() -> tuple[str, dict[str, str]] | None:
    """The service that the environment names, and the keys by their kinds; None where it names none."""
    url = os.environ.get("INTERLOCK_URL")
    keys = {kind: os.environ.get(variable) for kind, variable in KEY_VARIABLES.items()}
    return (url, {kind: key for kind, key in keys.items() if key}) if url else None


def given_checkout() -> Path | None:
    """The checkout that the environment names, for tests that start a service of their own."""
    given = os.environ.get("INTERLOCK_CHECKOUT")
    return Path(given) if given else None


def certificate_places() -> tuple[str | None, ...]:
    """Where the environment says that trusted certificates are, for whoever reads them."""
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


def read_profile(name: str | None = None) -> dict[str, Any]:
    """The chosen profile; empty if none was chosen and there is no default. Raises ConfigurationError if unusable."""
    chosen = name or os.environ.get("INTERLOCK_PROFILE") or None
    path = profiles_path()
    try:
        stored = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        stored = {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__}); correct or remove it") from None
    entry = stored.get(chosen or "default") if isinstance(stored, dict) else None
    if isinstance(entry, dict):
        return entry
    if chosen:
        raise ConfigurationError(f"there is no profile {chosen!r} in {path}")
    return {}


def find_url(given: str | None, profile: str | None = None) -> str:
    """The service's URL without a trailing slash. Raises ConfigurationError if there is none or it cannot be one."""
    url = given or os.environ.get("INTERLOCK_URL") or read_profile(profile).get("url")
    if not url or not isinstance(url, str):
        raise ConfigurationError(
            "no service URL: pass url=…, set INTERLOCK_URL, or write a profile. A local service prints its URL when it starts."
        )
    return check_url(url)


def check_url(url: str) -> str:
    """The URL in the form we use, or ConfigurationError."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("the service URL cannot be read; it looks like https://host or https://host:port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"the service URL must start with https:// or http:// and name a host, got {url!r}")
    if parts.username or parts.password:
        # httpx would turn it into its own Authorization header, and it would show in every log line.
        raise ConfigurationError("the service URL must not carry a user or password; the key goes in its own setting")
    if parts.query or parts.fragment:
        raise ConfigurationError("the service URL must not carry a query or a fragment")
    return url.strip().rstrip("/")


def find_key(given: str | None, kind: KeyKind, profile: str | None = None) -> Secret:
    """The key of that kind. Raises ConfigurationError (never quoting the key) if there is none or it cannot be one."""
    variable = KEY_VARIABLES[kind]
    key = given or os.environ.get(variable)
    if not key:
        keys = read_profile(profile).get("keys")
        key = keys.get(kind) if isinstance(keys, dict) else None
    if not key or not isinstance(key, str):
        raise ConfigurationError(f"no {kind} key: pass key=…, set {variable}, or write a profile")
    key = key.strip()
    if not key or not all("!" <= letter <= "~" for letter in key):
        # An HTTP library would refuse such a header with a message that quotes it.
        raise ConfigurationError(
            f"the {kind} key has characters that no key has (a space, a line break or a non-ASCII letter): copy it again"
        )
    return Secret(key)


def same_security(own: str, other: str) -> bool:
    """Whether the key may travel to another URL that the service told: never from https to http."""
    return urlsplit(other).scheme in ("https", urlsplit(own).scheme)
