"""A clone on a machine that has Python and nothing else: one command, as root or not, in a path with a space."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: How this network wants to be used; everything else of the environment is left behind.
NETWORK = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"),
    *("http_proxy", "https_proxy", "no_proxy"),
)


def copy_repository(target: Path) -> None:
    """What a clone would hold if everything were committed now."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("user", ["me", "nobody"])
def test_scripts_dev_makes_its_own_environment(open_folder: Path, user: str) -> None:
    if user != "me" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("this test wants a Python of the system, in /usr/bin")
    clone = open_folder / "a fresh clone"
    copy_repository(clone)
    home = open_folder / "home"
    home.mkdir()
    uid = os.geteuid()
    if user != "me":
        entry = pwd.getpwnam(user)
        uid = entry.pw_uid
        for path in (home, clone, *clone.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    with (open_folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [clone / "scripts" / "dev", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), **{n: os.environ[n] for n in NETWORK if n in os.environ}},
            user=None if user == "me" else uid,
            group=None if user == "me" else entry.pw_gid,
            extra_groups=None if user == "me" else [],
        )
    info = clone / ".interlock" / "dev.json"
    try:

        def written() -> bool:
            assert process.poll() is None, (open_folder / "output").read_text()
            return info.exists()

        wait_until(written, 240, every=0.2)
        assert info.stat().st_uid == uid
        assert wait_until(lambda: httpx.get(json.loads(info.read_text())["serviceUrl"] + "/readyz").status_code == 200)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
