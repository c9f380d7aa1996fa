"""Makes a run of the command see what a user has: the `[cli]` extra, without the other packages of the tests' environment.

httpx has a command of its own that it imports whenever click is there, at a quarter of a run's time.
"""

import sys

sys.modules["click"] = None  # type: ignore[assignment]
