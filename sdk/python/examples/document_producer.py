"""Have a document counted: `python document_producer.py README.md` or `… https://host/text.txt`.

A path is read by the worker, on its machine. Needs INTERLOCK_URL and INTERLOCK_PRODUCER_KEY, and a running
document_worker.py (or hello_worker.py).
"""

from __future__ import annotations

import json
import sys

from interlock import TaskFailed, TaskProducer


def main(document: str) -> int:
    """Submit, wait, print."""
    is_url = document.startswith(("https://", "http://"))
    inp = {"document": {"$url": document}} if is_url else {"path": document}
    try:
        result = TaskProducer().submit("demo/text-statistics", 1, inp).result(timeout=600)
    except TaskFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
