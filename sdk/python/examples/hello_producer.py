"""Submit `demo/hello` and print its result. Needs INTERLOCK_URL and INTERLOCK_PRODUCER_KEY, and a running hello_worker.py."""

from __future__ import annotations

import sys

from interlock import TaskProducer


def main(name: str = "Ada") -> None:
    """Greet by way of a worker."""
    producer = TaskProducer()
    # The same key names the same task: running this twice within a day answers the first task's result again.
    handle = producer.submit("demo/hello", 1, {"name": name}, idempotency_key=f"hello-{name}")
    print(handle.result(timeout=60)["message"])


if __name__ == "__main__":
    main(*sys.argv[1:2])
