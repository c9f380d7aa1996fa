"""Brings the database up to date; run at deploy, before traffic that needs the new schema."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from interlock_core.db import Database
from interlock_core.migrate import migrate
from interlock_core.settings import Settings

FOLDER = Path(__file__).parent / "migrations"


async def run(database: Database, _settings: Settings) -> dict[str, Any]:
    """Applies what is new; returns the names of the migrations that this call applied."""
    return {"applied": await asyncio.to_thread(migrate, database.url, FOLDER)}


def handler(_event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """The Lambda entry point."""
    settings = Settings.from_environment()
    return {"applied": migrate(settings.database_url, FOLDER)}
