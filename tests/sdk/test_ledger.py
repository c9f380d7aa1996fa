"""What the worker's threads agree on: slots, claims, outcomes. No service, no network; time is the ledger's own."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from interlock import ledger as ledger_module
from interlock.attempt import Attempt
from interlock.handler import Handler
from interlock.ledger import CLAIM_SLOTS, Ledger
from interlock.outcome import Outcome, report
from interlock.work import ClaimRequest

_numbers = itertools.count(1)


class Time:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(ledger_module.clock, "now", found.now)
    return found


def make_handler(name: str = "a/b", limit: int | None = None) -> Handler:
    return Handler(name, 1, lambda inp, ctx: None, "pure", max_concurrent=limit)


def make_attempt(handler: Handler) -> Attempt:
    number = next(_numbers)
    claim = {"taskId": f"t{number}", "attemptId": f"a{number}", "fence": 1, "leaseToken": "x", "leaseSeconds": 60}
    now = ledger_module.clock.now()
    return Attempt(claim, handler, now, now, "")


def bring(ledger: Ledger, claim: ClaimRequest, count: int, handler: Handler, next_in: float = 30.0) -> list[Attempt]:
    attempts = [make_attempt(handler) for _ in range(count)]
    assert ledger.take_claimed(claim, attempts, [], False, next_in)
    return attempts


def next_claim(ledger: Ledger, lane: int = 0) -> ClaimRequest:
    work = ledger.next_work(lane, None)
    assert work is not None
    assert work.claim is not None
    return work.claim


def idle(ledger: Ledger, lane: int, pending: ClaimRequest | None = None) -> float:
    """Seconds for which the lane has nothing to carry."""
    work, wait = ledger._choose(lane, pending, ledger_module.clock.now())
    assert work is None, work
    return wait


def test_claims_never_ask_for_more_than_can_start(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 250)
    first = next_claim(ledger)
    assert first.slots == CLAIM_SLOTS
    assert idle(ledger, 1) <= 3.0  # one claim at a time, unless it hangs
    time.at += 3.1
    second = next_claim(ledger, 1)
    assert second.slots == CLAIM_SLOTS
    bring(ledger, first, 100, handler)  # all that was asked for: there may be more
    third = next_claim(ledger)
    assert third.slots == 50
    bring(ledger, second, 100, handler)
    bring(ledger, third, 50, handler)
    assert len(ledger.running) == 250
    assert idle(ledger, 0) > 1


def test_a_handlers_own_limit_holds_over_claims_in_flight(time: Time) -> None:
    narrow, wide = make_handler("a/narrow", 2), make_handler("a/wide")
    ledger = Ledger([narrow, wide], 10)
    first = next_claim(ledger)
    assert [(item["type"], item.get("slots")) for item in first.handlers] == [("a/narrow", 2), ("a/wide", None)]
    time.at += 5
    ledger.wake()
    second = next_claim(ledger, 1) if first.slots < 10 else None
    assert second is None
    attempts = bring(ledger, first, 1, narrow, 0)
    again = next_claim(ledger)
    assert [(item["type"], item.get("slots")) for item in again.handlers] == [("a/narrow", 1), ("a/wide", None)]
    bring(ledger, again, 1, narrow, 0)
    assert [item["type"] for item in next_claim(ledger).handlers] == ["a/wide"]
    ledger.finish(attempts[0], report(attempts[0], "succeeded", b""))


def test_a_wake_during_a_claim_is_not_lost(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    claim = next_claim(ledger)
    ledger.wake()
    bring(ledger, claim, 0, handler, 30)
    assert next_claim(ledger).slots == 2


def test_finished_outcomes_are_carried_before_a_claim_and_it_rides_along(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 3)
    attempts = bring(ledger, next_claim(ledger), 3, handler)  # full: there is more work than slots
    ledger.finish(attempts[0], report(attempts[0], "succeeded", b""))
    # The outcome lingers for others. Neither lane goes off to claim meanwhile: a claim that hangs would keep it waiting.
    assert idle(ledger, 0) <= ledger_module.LINGER
    assert idle(ledger, 1) <= 0.25
    time.at += 0.01
    work = ledger.next_work(0, None)
    assert work is not None
    assert work.claim is not None
    assert ([outcome.attempt_id for outcome in work.outcomes], work.claim.slots) == ([attempts[0].id], 1)


def run_one(ledger: Ledger, claim: ClaimRequest, count: int = 1) -> ClaimRequest | None:
    """The claim brings so many tasks, which end; what rides along with their outcomes."""
    for attempt in bring(ledger, claim, count, ledger.handlers["a/b", 1]):
        ledger.finish(attempt, report(attempt, "succeeded", b""))
    work = ledger.next_work(0, None)
    assert work is not None
    assert len(work.outcomes) == count
    return work.claim


def test_where_tasks_come_one_at_a_time_no_claim_rides_along_that_finds_nothing(time: Time) -> None:
    ledger = Ledger([make_handler()], 10)
    ledger.riding.hinted = True
    riding = run_one(ledger, next_claim(ledger))
    assert riding is not None
    bring(ledger, riding, 0, make_handler())
    for _ in range(3):
        ledger.wake()
        assert run_one(ledger, next_claim(ledger)) is None
    ledger.wake()
    assert run_one(ledger, next_claim(ledger), 2) is not None  # several at once: there may be more


def test_a_claim_that_is_due_rides_along_in_any_case(time: Time) -> None:
    ledger = Ledger([make_handler()], 10)
    ledger.riding.hinted, ledger.riding.pays = True, False
    [attempt] = bring(ledger, next_claim(ledger), 1, make_handler(), next_in=30)
    time.at += 31
    ledger.finish(attempt, report(attempt, "succeeded", b""))
    work = ledger.next_work(0, None)
    assert work is not None
    assert (len(work.outcomes), work.claim is not None) == (1, True)


def test_a_wake_during_the_handler_is_answered_by_a_claim_that_rides_along(time: Time) -> None:
    ledger = Ledger([make_handler()], 1)  # no slot is free to claim at once
    ledger.riding.hinted, ledger.riding.pays = True, False
    claim = next_claim(ledger)
    [attempt] = bring(ledger, claim, 1, make_handler())
    ledger.wake()
    ledger.finish(attempt, report(attempt, "succeeded", b""))
    time.at += 0.01
    work = ledger.next_work(0, None)
    assert work is not None
    assert (len(work.outcomes), work.claim is not None) == (1, True)


def test_without_a_stream_every_report_brings_a_claim(time: Time) -> None:
    ledger = Ledger([make_handler()], 10)
    ledger.riding.pays = False
    assert run_one(ledger, next_claim(ledger)) is not None


def test_outcomes_that_no_lane_takes_are_offered_for_saving(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    [attempt] = bring(ledger, next_claim(ledger), 1, handler)
    saved: list[list[Outcome] | None] = []
    saver = threading.Thread(target=lambda: saved.append(ledger.next_unsaved()))
    saver.start()
    ledger.finish(attempt, report(attempt, "succeeded", b""))
    time.at += 0.31
    saver.join(5)
    assert not saver.is_alive()
    [found] = saved
    assert found is not None
    assert [outcome.attempt_id for outcome in found] == [attempt.id]
    assert not ledger.ready
    ledger.put_back(found)
    assert len(ledger.ready) == 1


def test_while_the_service_is_out_of_reach_nothing_is_sent(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    claim = next_claim(ledger)
    ledger.hold(10)
    assert idle(ledger, 0, claim) == pytest.approx(10)
    time.at += 10.1
    work = ledger.next_work(0, claim)
    assert work is not None
    assert (work.claim, work.outcomes) == (None, [])  # the lane repeats the claim that it has


def test_a_drain_ends_claims_and_its_waits_see_the_end(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    [attempt] = bring(ledger, next_claim(ledger), 1, handler)
    ledger.start_draining()
    ledger.wake()
    assert idle(ledger, 0) > 1
    assert not ledger.wait_until_idle(time.at - 1)
    ledger.finish(attempt, report(attempt, "succeeded", b""))
    assert ledger.wait_until_idle(time.at + 1)
    assert not ledger.wait_until_sent(time.at - 1)
    work = ledger.next_work(0, None)
    assert work is not None
    ledger.let_go([outcome.attempt for outcome in work.outcomes])
    assert ledger.wait_until_sent(time.at + 1)


def test_what_a_claim_brings_into_a_drain_is_given_back(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    claim = next_claim(ledger)
    ledger.start_draining()
    attempt = make_attempt(handler)
    assert not ledger.take_claimed(claim, [attempt], [], False, 1)
    assert not ledger.running
    work = ledger.next_work(0, None)
    assert work is not None
    assert [release.attempt for release in work.releases] == [attempt]
    assert not ledger.wait_until_sent(time.at - 1)  # on its way, not yet answered
    ledger.let_go([attempt])
    assert ledger.wait_until_sent(time.at + 1)


def test_what_a_handler_says_after_its_attempt_was_given_back_is_not_sent(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    attempts = bring(ledger, next_claim(ledger), 2, handler)
    assert ledger.give_back(attempts[0])
    ledger.finish(attempts[0], report(attempts[0], "succeeded", b""))
    attempts[1].stop("stale")
    ledger.finish(attempts[1], report(attempts[1], "succeeded", b""))
    assert not ledger.ready
    assert list(ledger.held) == [attempts[0].id]  # until the release is answered
    assert not ledger.running


def test_outcomes_due_later_do_not_hold_the_others(time: Time) -> None:
    ledger = Ledger([make_handler()], 1)
    ids: dict[str, Any] = {"task_id": "t", "body": b"{}", "status": "succeeded"}
    later, due = Outcome(attempt_id="later", not_before=time.at + 5, **ids), Outcome(attempt_id="due", **ids)
    ledger.replay([later, due])
    work = ledger.next_work(0, None)
    assert work is not None
    assert [outcome.attempt_id for outcome in work.outcomes] == ["due"]
    time.at += 5
    work = ledger.next_work(0, None)
    assert work is not None
    assert [outcome.attempt_id for outcome in work.outcomes] == ["later"]


def test_while_a_lease_has_lapsed_nothing_is_claimed_and_reports_go_out_alone(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 3)
    one, other = bring(ledger, next_claim(ledger), 2, handler, 10.0)
    time.at += 60
    assert idle(ledger, 0) <= 1
    assert idle(ledger, 0, ClaimRequest(1, [], [], 0, time.at)) <= 1  # one on its way waits too
    ledger.finish(one, report(one, "succeeded", b""))
    time.at += 0.3
    work = ledger.next_work(0, None)
    assert work is not None
    assert ([outcome.attempt_id for outcome in work.outcomes], work.claim) == ([one.id], None)
    ledger.let_go([one])
    assert not ledger.may_claim()
    other.renewed_at = time.at
    assert ledger.may_claim()
    assert next_claim(ledger).slots == 2


def test_a_lease_that_is_anothers_keeps_no_claim_waiting(time: Time) -> None:
    handler = make_handler()
    ledger = Ledger([handler], 2)
    [attempt] = bring(ledger, next_claim(ledger), 1, handler, 10.0)
    time.at += 60
    assert not ledger.may_claim()
    attempt.stop("stale")
    assert next_claim(ledger).slots == 1
