"""A worker in twenty lines: `demo/hello` greets. It also serves the documents of document_worker.py.

Needs INTERLOCK_URL and INTERLOCK_WORKER_KEY. Run it with `python hello_worker.py`; Ctrl-C drains it.
"""

from __future__ import annotations

import logging
from typing import Any

from document_worker import serve_documents

from interlock import TaskContext, TaskWorker

worker = TaskWorker(worker_id="hello", max_concurrent=4)


@worker.handle("demo/hello", 1, effect_safety="pure", description="Greets whoever is named")
def hello(inp: dict[str, Any], ctx: TaskContext) -> dict[str, str]:
    """`{"name": "Ada"}` → `{"message": "Hello, Ada!"}`."""
    ctx.log.info("greeting %s", inp["name"])
    return {"message": f"Hello, {inp['name']}!"}


serve_documents(worker)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    worker.run()
