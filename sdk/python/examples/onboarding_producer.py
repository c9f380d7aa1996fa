"""Submits an onboarding, says that the address is verified, and waits for the end.

Needs INTERLOCK_URL and INTERLOCK_PRODUCER_KEY, and onboarding_worker.py somewhere.
"""

from __future__ import annotations

import json
import sys

from interlock import TaskProducer

email = sys.argv[1] if len(sys.argv) > 1 else "ada@example.com"
producer = TaskProducer()
handle = producer.submit("accounts/onboard", 1, {"email": email}, idempotency_key=f"onboard-{email}", lease=10)
# Kept until the run comes to it; the key makes it one signal, however often it is sent.
producer.signal(handle.id, "verified", {"by": "mail"}, signal_key=f"verified-{email}")
print(json.dumps(handle.result(timeout=600)))
