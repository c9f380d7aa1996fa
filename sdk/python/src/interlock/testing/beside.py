"""A program beside a test run, which ends with it, however that ends: `python -m interlock.testing.beside COMMAND …`.

The test run holds the other end of our standard input. When it is gone, killed or not, the input ends, and so does the command.
"""

from __future__ import annotations

import subprocess
import sys
import threading

STOP_SECONDS = 15.0


def main(command: list[str]) -> int:
    """Run the command until it ends, or our standard input does."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    threading.Thread(target=wait_for_end, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
