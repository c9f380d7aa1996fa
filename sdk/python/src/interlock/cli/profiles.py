"""The file of profiles that `interlock.settings` reads: changed as a whole, readable by its owner only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from interlock.errors import ConfigurationError
from interlock.settings import KeyKind, profiles_path


def read_profiles() -> dict[str, Any]:
    """Every profile by its name; empty where there is no file. Raises ConfigurationError if it cannot be read."""
    path = profiles_path()
    try:
        stored = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__}); correct or remove it") from None
    if not isinstance(stored, dict):
        raise ConfigurationError(f"{path} holds no profiles; correct or remove it")
    return stored


def write_profile(name: str, url: str, keys: Mapping[KeyKind, str]) -> Path:
    """Set the URL and these keys of a profile, keep its others, and return the file. Raises OSError, ConfigurationError."""
    stored = read_profiles()
    before = stored.get(name)
    before = before if isinstance(before, dict) else {}
    kept = before.get("keys")
    kept = kept if isinstance(kept, dict) else {}
    stored[name] = {**before, "url": url, "keys": {**kept, **keys}}
    return store(stored)


def remove_profiles(names: Collection[str]) -> list[str]:
    """Remove profiles, keys and all; the names of those that were there. Raises OSError, ConfigurationError."""
    stored = read_profiles()
    removed = [name for name in stored if name in names]
    if removed:
        store({name: entry for name, entry in stored.items() if name not in removed})
    return removed


def store(profiles: Mapping[str, Any]) -> Path:
    """Write the file anew, and return it."""
    # Where it is a link into another folder, what it leads to is what changes.
    path = Path(os.path.realpath(profiles_path()))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, json.dumps(profiles, indent=2, ensure_ascii=False) + "\n")
    return path


def readable_by_others(path: Path) -> bool:
    """Whether other users of this machine can read the file; where that cannot be told (Windows), no."""
    return os.name != "nt" and bool(path.stat().st_mode & 0o077)


def replace_file(path: Path, text: str) -> None:
    """Put a file in the place of another, whole or not at all, for its owner only from its first byte on."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
