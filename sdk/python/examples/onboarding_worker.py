"""A durable run: three steps, a sleep and a signal, over two minutes or two weeks, through crashes and deploys.

Needs INTERLOCK_URL and INTERLOCK_WORKER_KEY. Run it with `python onboarding_worker.py`, kill it wherever you like, and start
it again. `onboarding_producer.py` submits one and sends the signal. Each effect is a line in the file EFFECTS (effects.txt).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from interlock import DidNotHappen, Happened, Retry, TaskContext, TaskWorker

EFFECTS = Path(os.environ.get("EFFECTS", "effects.txt"))
NAP = float(os.environ.get("NAP", "120"))

worker = TaskWorker(worker_id="onboarding", max_concurrent=4)


def do(effect: str, key: str) -> str:
    """Stands for a call of another system: one that takes the key would do it once, however often it is asked."""
    with EFFECTS.open("a", encoding="utf-8") as file:
        file.write(f"{effect} {key}\n")
    return f"{effect}-{key[-12:]}"


def find(effect: str, key: str) -> Any:
    """Ask the other system whether it was done."""
    done = EFFECTS.read_text(encoding="utf-8").splitlines() if EFFECTS.exists() else []
    return Happened(f"{effect}-{key[-12:]}") if f"{effect} {key}" in done else DidNotHappen()


@worker.handle("accounts/onboard", 1, effect_safety="pure", retry=Retry(20, initial_delay=0.5), description="Makes an account")
async def onboard(inp: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """`{"email": "a@b"}` → `{"account", "verified", "charge"}`."""
    ctx.log.info("onboarding %s", inp["email"])
    account = await ctx.step("create", do, "create", ctx.effect_key("create"), effect_safety="idempotent")
    await ctx.step("welcome", do, "welcome", ctx.effect_key("welcome"), effect_safety="idempotent", retry=Retry(3))
    await ctx.sleep(NAP)
    verified = await ctx.wait_for_signal("verified", timeout=14 * 86_400)
    charge = await ctx.step("charge", do, "charge", ctx.effect_key("charge"), effect_safety="non-idempotent", reconcile=find)
    return {"account": account, "verified": verified, "charge": charge}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    worker.run()
