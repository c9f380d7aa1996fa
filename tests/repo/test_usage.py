"""The scripts say how they are used without preparing anything first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["bench", "build", "test"])
def test_a_script_tells_its_usage_before_it_prepares_anything(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "scripts" / name  # alone: without the rest of the repository it could prepare nothing
    copy.parent.mkdir()
    copy.write_text((ROOT / "scripts" / name).read_text())
    done = subprocess.run(["bash", copy, "--help"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: scripts/{name} " in done.stdout
    assert "# " not in done.stdout
