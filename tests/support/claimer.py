"""A worker in a few lines of HTTP, without the SDK: for tests of the service alone."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any

import httpx


class Claimer:
    """One worker process as the service sees it: an instance that claims, reports and remembers what it was given."""

    def __init__(self, client: httpx.Client, types: Iterable[str] = ("demo/hello",), *, effect_safety: str = "pure") -> None:
        self.client = client
        self.worker_id = "claimer"
        self.instance_id = str(uuid.uuid4())
        self.handlers = [{"type": name, "schemaVersion": 1, "effectSafety": effect_safety} for name in types]
        #: Every claim that was answered, in order.
        self.claimed: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    def claim_body(self, slots: int) -> dict[str, Any]:
        return {
            "workerId": self.worker_id,
            "instanceId": self.instance_id,
            "claimId": f"{self.instance_id}-{next(self._numbers)}",
            "pool": "default",
            "slots": slots,
            "handlers": self.handlers,
        }

    def claim(self, slots: int = 10) -> list[dict[str, Any]]:
        """Up to `slots` attempts."""
        answer = self.client.post("/v1/claims", json=self.claim_body(slots))
        assert answer.status_code == 200, answer.text
        return self._keep(answer.json()["attempts"], slots)

    def complete(
        self, attempts: list[dict[str, Any]], *, claim: int = 0, outcome: str = "succeeded", **fields: Any
    ) -> dict[str, Any]:
        """Report one outcome for these attempts, and claim up to `claim` more in the same call. The whole answer."""
        body: dict[str, Any] = {"completions": [{**ids(a), "outcome": outcome, **fields} for a in attempts]}
        if outcome == "succeeded":
            body["completions"] = [
                {"result": {"task": a["taskId"]}, **item} for a, item in zip(attempts, body["completions"], strict=True)
            ]
        if claim:
            body["claim"] = self.claim_body(claim)
        answer = self.client.post("/v1/attempts/complete", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        if claim:
            self._keep(found["claim"]["attempts"], claim)
        return found

    def _keep(self, attempts: list[dict[str, Any]], slots: int) -> list[dict[str, Any]]:
        assert len(attempts) <= slots
        self.claimed += attempts
        return attempts


def ids(attempt: dict[str, Any]) -> dict[str, Any]:
    """What every report says about its attempt."""
    return {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
