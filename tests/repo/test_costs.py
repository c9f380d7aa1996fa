"""The totals of docs/deploy.md are computed from the prices that it names."""

from __future__ import annotations

import re

from repo.tree import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
HOURS = 730
STREAM = {"small": (1, 0.25, 0.5, 3), "ha": (2, 0.5, 1, 4)}  # tasks, vCPU and GB of each, addresses with the balancer's two


def prices() -> dict[str, float]:
    """The inputs by name."""
    found: dict[str, float] = {}
    for names, values in re.findall(r"^\| ([a-z]+(?: · [a-z]+)*): [^|]+\| ([\d. ·]+) \| [a-z/-]+ \|$", PAGE, re.MULTILINE):
        found |= dict(zip(names.split(" · "), map(float, values.split(" · ")), strict=True))
    return found


def row(title: str) -> list[str]:
    """The cells of a row of the table of idle costs, for zero, small and ha."""
    found = re.search(rf"^\| {re.escape(title)}[^|]*\|(.+)\|$", PAGE, re.MULTILINE)
    assert found is not None, title
    return [cell.strip() for cell in found[1].split("|")]


def test_the_idle_bill_follows_from_the_named_prices() -> None:
    price = prices()
    assert len(price) == 19
    calls = dict(
        zip(("zero", "small", "ha"), (int(cell.replace(",", "")) for cell in row("calls of functions a month")), strict=True)
    )
    totals = {}
    for profile, count in calls.items():
        alarms = 5 if profile == "zero" else 7
        total = count * (price["api"] + price["call"]) / 1e6 + count * 0.05 * 0.5 * price["gbs"]
        total += price["secret"] + 5 * price["metric"] + alarms * price["alarm"] + price["dashboard"]
        if profile != "zero":
            tasks, vcpu, memory, addresses = STREAM[profile]
            units = 0.5 if profile == "small" else 2
            total += HOURS * (units * price["acu"] + 2 * price["endpoint"])
            total += HOURS * (tasks * (vcpu * price["vcpu"] + memory * price["gb"]) + price["alb"] + addresses * price["ip"])
        total += HOURS * 8 * price["proxy"] if profile == "ha" else 0
        totals[profile] = total
    stated = dict(zip(totals, (re.findall(r"\*\*([\d.]+)\*\*", cell)[0] for cell in row("**a month**")), strict=True))
    assert {profile: abs(total - float(stated[profile])) < 0.02 for profile, total in totals.items()} == dict.fromkeys(
        totals, True
    ), totals


def last_number(cell: str) -> float:
    """What a cell comes to."""
    return float(re.findall(r"[\d.]+", cell)[-1])


def test_the_bill_of_tasks_follows_from_the_named_prices() -> None:
    price = prices()
    for tasks, units in ((10_000, 0.0), (10_000_000, 1.5)):
        singly, batches, database = map(last_number, row(f"{tasks:,}"))
        for calls, stated in ((2.2 * tasks, singly), (0.05 * tasks, batches)):
            total = calls * (price["api"] + price["call"]) / 1e6 + calls * 0.03 * 0.5 * price["gbs"]
            assert abs(total - stated) < 0.01, (tasks, total)
        assert abs(10 * tasks / 1e6 * price["io"] + units * HOURS * price["acu"] - database) < 0.01, tasks
