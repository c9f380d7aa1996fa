"""Writes what is made from other files: the OpenAPI document, for the SDKs and for the service, the page it serves, and
the hash of the migrations, by which a deployment knows that there are new ones.

usage: generate.py [--check]     --check writes nothing and fails where a file is not what would be written
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path

from interlock_core.migrate import hash_folder
from interlock_core.openapi import document
from interlock_core.settings import Settings
from service import build_app
from template import ROOT

STATIC = ROOT / "layers" / "core" / "interlock_core" / "static"
CONTRACT = ROOT / "sdk" / "contract" / "openapi.json"


def make() -> dict[Path, str]:
    """Each generated file with its text."""
    openapi = json.dumps(document(build_app(Settings()).state.endpoints), indent=1, ensure_ascii=False) + "\n"
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    template = (ROOT / "template.yaml").read_text(encoding="utf-8")
    template = re.sub(r'^( +Hash: )"[^"]*"', rf'\1"{hash_folder(ROOT / "migrations")}"', template, flags=re.MULTILINE)
    return {CONTRACT: openapi, STATIC / "openapi.json": openapi, STATIC / "tasks.md": page, ROOT / "template.yaml": template}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    failed = False
    for path, text in make().items():
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found == text:
            continue
        name = path.relative_to(ROOT).as_posix()
        if arguments:
            failed = True
            lines = difflib.unified_diff(found.splitlines(), text.splitlines(), name, f"{name}, made anew", lineterm="", n=1)
            print("\n".join(list(lines)[:40]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if failed:
        print("run: .venv/bin/python scripts/lib/generate.py")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
