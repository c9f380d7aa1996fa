"""Figures for CloudWatch, as lines of a function's log (embedded metric format): no call, no agent, no permission."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

#: What the sweep tells, with CloudWatch's units. Ready and Running are counted to 10,000 at most.
FIGURES = {
    "SweepSeconds": "Seconds",
    "Ready": "Count",
    "Running": "Count",
    "OutcomeUnknown": "Count",
    "OldestReadyAgeSeconds": "Seconds",
}
NAMESPACE = "Interlock"


def line(stack: str, values: Mapping[str, float]) -> str:
    """One line that CloudWatch makes metrics of, under the dimension `Stack`. Raises KeyError for an unknown figure."""
    metrics = [{"Name": name, "Unit": FIGURES[name]} for name in values]
    told = {"Namespace": NAMESPACE, "Dimensions": [["Stack"]], "Metrics": metrics}
    about = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [told]}
    return msgspec.json.encode({"_aws": about, "Stack": stack, **values}).decode()
