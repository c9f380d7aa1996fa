"""Claiming work."""

from __future__ import annotations

from typing import Any

from interlock_core import claims
from interlock_core.entry import lambda_handler
from interlock_core.http import Call, api, endpoint
from interlock_core.wire.claim import Claim


@endpoint("POST", "/v1/claims", keys=("task-worker",), body=Claim)
async def claim(call: Call) -> dict[str, Any]:
    """Lease up to `slots` ready tasks; a repeated claimId answers its own attempts again."""
    return await claims.claim(call.database, call.settings, call.key, call.body)


app = api(claim)
handler = lambda_handler(app)
