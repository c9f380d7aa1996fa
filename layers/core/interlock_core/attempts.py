"""What workers report of attempts: heartbeat, complete, release (protocol.md §5, §6).

Every report is fenced: it counts only while its attempt is current, by task, attempt, fence, token and epoch at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from . import admission, ends, hints, reports, steps
from .canonical import canonical
from .db import Database, Row, Step, statements
from .errors import InvalidRequest, LimitExceeded, Problem, RateLimited, StaleAttempt, Unavailable
from .ids import new_id
from .keys import Key
from .states import QUEUED
from .wire.rules import INLINE_BYTES
from .wire.times import when

complete_sql = statements("complete")
heartbeat_sql = statements("heartbeat")
release_sql = statements("release")
resume_sql = statements("resume")

MAX_LINES = 10_000
MAX_LOG_BYTES = 4 * 1024 * 1024
# Seconds between progress or logs of one attempt: faster ones are refused, their lease is renewed all the same.
REPORT_INTERVAL = 0.1
_encode = msgspec.json.Encoder().encode

Write = Callable[[Key, list[dict[str, Any]]], list[Step]]
"""The statements of a fenced write over a batch (key, rows); the first returns what was taken."""


def _json(value: Any) -> str:
    return _encode(value).decode()


async def heartbeat(
    database: Database, key: Key, items: Sequence[reports.Item], who: dict[str, Any] | None
) -> tuple[list[dict[str, Any] | Problem], dict[str, Any]]:
    """Renews every lease and stores progress and logs; per item {leaseExpiresAt, stop} or a Problem.

    `who` is the instance with its `draining` and `slots`, or None for a single report. Also returns serverTime and drain.
    """
    rows = [reports.fence(i.model) | _said(i) for i in items if i.model is not None]
    instance = who or {"worker_id": "", "instance_id": "", "draining": None, "slots": None}
    place = {name: instance[name] for name in ("worker_id", "instance_id")}
    beside = [
        heartbeat_sql.alive(project=key.project, **instance),
        heartbeat_sql.state(project=key.project, **place),
    ]
    answers: dict[int, dict[str, Any] | Problem] = {n: item.refusal for n, item in enumerate(items) if item.refusal is not None}
    places = [n for n, item in enumerate(items) if item.model is not None]
    state = None
    for turn in _rounds(rows) or [[]]:
        mine, extra_steps = [rows[i] for i in turn], beside if state is None else []
        taken, others, rest = await _settle(database, key, mine, _renewed, extra=extra_steps)
        state = state or rest[1][0]
        await admission.admit(database, key.project, [row.concurrency_key for row in taken.values() if row.recovered])
        for i in turn:
            answers[places[i]] = _beaten(str(rows[i]["attempt_id"]), taken, others)
    assert state is not None
    extra: dict[str, Any] = {"serverTime": when(state.now)}
    if state.drain:
        extra["drain"] = True
    return [answers[n] for n in range(len(items))], extra


def _renewed(key: Key, rows: list[dict[str, Any]]) -> list[Step]:
    limits = {"max_lines": MAX_LINES, "max_bytes": MAX_LOG_BYTES, "report_interval": REPORT_INTERVAL}
    return [heartbeat_sql.renew(project=key.project, scope=key.scope, items=_json(rows), **limits)]


def _said(item: reports.Item) -> dict[str, Any]:
    lines = reports.log_lines(item.model.logs)
    progress = reports.progress_of(item.model.progress)
    encoded = _encode(lines)
    return {
        "progress": msgspec.Raw(progress.encode()) if progress else None,
        "logs": msgspec.Raw(encoded) if lines else None,
        "log_seq": lines[-1]["seq"] if lines else 0,
        "log_lines": len(lines),
        "log_bytes": len(encoded) if lines else 0,
    }


def _beaten(name: str, taken: dict[str, Row], others: dict[str, Problem]) -> dict[str, Any] | Problem:
    row = taken.get(name)
    if row is None:
        return others[name]
    if row.too_often:
        return RateLimited(
            f"progress and logs of one attempt are taken every {REPORT_INTERVAL} s; the lease was renewed",
            leaseExpiresAt=when(row.lease_expires_at),
        )
    stop = "timeout" if row.overdue else "cancel" if row.cancel_requested else None
    return {"attemptId": row.attempt_id, "leaseExpiresAt": when(row.lease_expires_at), "stop": stop}


async def complete(database: Database, key: Key, items: Sequence[reports.Item]) -> list[dict[str, Any] | Problem]:
    """Takes outcomes; per item {attemptId, taskStatus, duplicate} or a Problem, in the order of the items."""
    rows = [reports.fence(i.model) | _outcome(i) for i in items if i.model is not None]
    return await _end(database, key, items, rows, _completed, final=True)


def _completed(key: Key, rows: list[dict[str, Any]]) -> list[Step]:
    call = str(new_id())
    limits = {"most_steps": steps.MOST_STEPS, "most_bytes": steps.MOST_BYTES}
    settle = complete_sql.settle(project=key.project, scope=key.scope, items=_json(rows), call=call, **limits)
    written = [settle]
    if suspended := [row["task_id"] for row in rows if row["outcome"] == "suspended"]:
        # a wait that is over already: read now that the task is locked
        written.append(resume_sql.resume(ids=suspended, at_once=call, inline_bytes=INLINE_BYTES))
    return written


def _outcome(item: reports.Item) -> dict[str, Any]:
    model = item.model
    code, message, details = reports.error_of(model.error)
    outcome, result = model.outcome, None
    parts: dict[str, Any] = {"outcome": outcome}
    if outcome == "succeeded":
        given = item.text.get("result")
        result, broken = reports.result_of(given)
        if broken is not None:
            outcome, (code, message), details = "failed", broken, None
            parts["result"] = hashlib.sha256((given or "").encode(errors="surrogatepass")).hexdigest()
        else:
            parts["result"] = canonical(result or "null")
    elif outcome == "suspended":
        parts["wait"] = model.wait.said()
    elif outcome != "cancelled":
        parts |= {"code": code, "message": message, "details": details or ""}
        if outcome == "unknown" and model.step is not None:
            parts["step"] = model.step
        parts["retryAfterSeconds"] = model.retry_after_seconds
    return {
        "outcome": outcome,
        "result": result,
        "code": code,
        "message": message,
        "details": msgspec.Raw(details.encode()) if details else None,
        "retry_after": model.retry_after_seconds,
        "step": model.step if outcome == "unknown" else None,
        "wait": parts.get("wait"),
        "orphans": reports.names_of(model.orphaned_steps),
        "report_hash": reports.report_hash("complete", parts),
    }


async def release(database: Database, key: Key, items: Sequence[reports.Item]) -> list[dict[str, Any] | Problem]:
    """Gives attempts back; per item {attemptId, taskStatus, duplicate} or a Problem."""
    rows = [
        reports.fence(i.model)
        | {
            "started": i.model.started,
            "reason": reports.cut(i.model.reason) or None,
            "report_hash": reports.report_hash("release", {"started": i.model.started}),
        }
        for i in items
        if i.model is not None
    ]
    return await _end(database, key, items, rows, _given_back, final=False)


def _given_back(key: Key, rows: list[dict[str, Any]]) -> list[Step]:
    return [release_sql.settle(project=key.project, scope=key.scope, items=_json(rows))]


async def release_claim(
    database: Database, key: Key, worker_id: str, instance_id: str, claim_id: str
) -> list[dict[str, Any] | Problem]:
    """Gives back a claim whose answer never came: its attempts that never reported; that claimId never leases again.

    A repeat answers what the first call gave back, as duplicates; a row that somebody else holds is UNAVAILABLE in its place.
    """
    who = {"project": key.project, "worker_id": worker_id, "instance_id": instance_id, "claim_id": claim_id}
    _, before, rows, epoch = await database.run(
        release_sql.enter(project=key.project, worker_id=worker_id, instance_id=instance_id),
        release_sql.forget(**who, call=new_id()),
        release_sql.of_claim(**who),
        release_sql.epoch(),
    )
    told: list[list[str]] = msgspec.json.decode(before[0].gave_back or "[]")
    answers: list[dict[str, Any] | Problem] = [{"attemptId": a, "taskStatus": status, "duplicate": True} for a, status in told]
    given_back = {
        "epoch": epoch[0].epoch,
        "started": False,
        "unheard": True,
        "reason": "the claim was given back",
        "report_hash": reports.report_hash("release", {"started": False}),
    }
    found = [{"task_id": r.task_id, "attempt_id": r.attempt_id, "fence": r.fence, "token": r.token} | given_back for r in rows]
    if not found:
        return answers
    taken, others, _ = await _settle(database, key, found, _given_back)
    await ends.follow(database, key.project, list(taken.values()))
    told += [[str(r.attempt_id), r.status] for r in taken.values()]
    await database.one(release_sql.gave_back(**who, answer=_json(told)))
    answers += [{"attemptId": r.attempt_id, "taskStatus": r.status, "duplicate": False} for r in taken.values()]
    if len(taken) < len(found):  # heard of meanwhile, and left alone; or its row is held by somebody else, and that is told
        still = {str(row.attempt_id) for row in await database.one(release_sql.of_claim(**who))}
        answers += [{"attemptId": name, "error": problem.body()} for name, problem in others.items() if name in still]
    return answers


def _taken(results: list[list[Row]]) -> dict[str, Row]:
    """What a fenced write took, by attempt; a suspension whose wait was over at once is queued already."""
    found = {str(row.attempt_id): row for row in results[0]} if results else {}
    resumed = {row.id: row.due_at for row in results[1]} if len(results) > 1 else {}
    for name, row in found.items() if resumed else ():
        if row.id in resumed:
            found[name] = row._replace(status=QUEUED, due_at=resumed[row.id])
    return found


def _not_allowed(key: Key, row: dict[str, Any], verdict: Row) -> Problem | None:
    """Why the report of a current attempt is refused: the key is not for it, or it may not suspend."""
    if (outside := key.outside(verdict.type, verdict.pool, verdict.worker_id)) is not None:
        return outside
    if row.get("outcome") != "suspended":
        return None
    if verdict.effect_safety == "non-idempotent":
        return InvalidRequest("a non-idempotent handler cannot wait: what it did so far could not be repeated", "/outcome")
    if verdict.other_kind is not None:
        return InvalidRequest(f"{verdict.other_kind!r} is the name of another step or child of this task", "/wait/name")
    if verdict.no_child is not None:
        return InvalidRequest(f"the task has no child named {verdict.no_child!r}", "/wait/children")
    if verdict.steps_stored >= steps.MOST_STEPS:
        return LimitExceeded(f"a task has at most {steps.MOST_STEPS} steps, finished waits included")
    if verdict.steps_bytes >= steps.MOST_BYTES:
        return LimitExceeded(f"the outputs of a task's steps and waits have at most {steps.MOST_BYTES} bytes together")
    return None


async def _end(
    database: Database, key: Key, items: Sequence[reports.Item], rows: list[dict[str, Any]], write: Write, final: bool
) -> list[dict[str, Any] | Problem]:
    """Ends attempts round by round: a batch that names an attempt twice is as two calls, one after the other."""
    answers: dict[int, dict[str, Any] | Problem] = {n: item.refusal for n, item in enumerate(items) if item.refusal is not None}
    places = [n for n, item in enumerate(items) if item.model is not None]
    for turn in _rounds(rows):
        mine = [rows[i] for i in turn]
        notify = hints.send(hints.payload(key.project, done=[r["task_id"] for r in mine])) if final else None
        taken, others, _ = await _settle(database, key, mine, write, final=final, notify=notify)
        await ends.follow(database, key.project, list(taken.values()), told=final)
        for i in turn:
            name = str(rows[i]["attempt_id"])
            if (row := taken.get(name)) is not None:
                answers[places[i]] = {"attemptId": row.attempt_id, "taskStatus": row.status, "duplicate": False}
            elif isinstance(found := others[name], Problem):
                answers[places[i]] = found
            else:
                answers[places[i]] = {"attemptId": rows[i]["attempt_id"], "taskStatus": found, "duplicate": True}
    return [answers[n] for n in range(len(items))]


def _rounds(rows: list[dict[str, Any]]) -> list[list[int]]:
    """Places of the rows, so that no round names an attempt twice: nearly always one round."""
    rounds: list[list[int]] = []
    seen: dict[str, int] = {}
    for place, row in enumerate(rows):
        name = str(row["attempt_id"])
        turn = seen[name] = seen.get(name, -1) + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    return rounds


async def _settle(
    database: Database,
    key: Key,
    rows: list[dict[str, Any]],
    write: Write,
    *,
    final: bool = False,
    extra: Sequence[Step] = (),
    notify: Step | None = None,
) -> tuple[dict[str, Row], dict[str, Any], list[list[Row]]]:
    """Runs a fenced write over a batch: taken rows by attempt, and for the others a Problem or the status it led to before.

    First all at once, passing over rows that somebody else holds; those one by one with a short wait; what is still held
    is UNAVAILABLE for that item alone.
    """
    batch = sorted(rows, key=lambda row: row["task_id"])  # the one lock order
    ids = [row["task_id"] for row in batch]
    sent: list[Step] = []
    if batch:
        sent = [complete_sql.lock(ids=ids), *write(key, batch)]
    results = await database.run(*sent, *extra, notify=notify) if sent or extra else []
    taken = _taken(results[1 : len(sent)])
    left = [row for row in batch if str(row["attempt_id"]) not in taken]
    others = await _explain(database, key, left, write, taken, final) if left else {}
    return taken, others, results[len(sent) :]


async def _explain(
    database: Database,
    key: Key,
    left: list[dict[str, Any]],
    write: Write,
    taken: dict[str, Row],
    final: bool,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    late = []
    asked = _json(
        [
            {k: v for k, v in row.items() if k in ("task_id", "attempt_id", "fence", "token", "epoch", "report_hash", "wait")}
            for row in left
        ]
    )
    by_attempt = {str(row["attempt_id"]): row for row in left}
    for verdict in await database.one(complete_sql.explain(project=key.project, items=asked)):
        name = str(verdict.attempt_id)
        row = by_attempt[name]
        if verdict.current and not verdict.other_epoch and (refusal := _not_allowed(key, row, verdict)) is not None:
            found[name] = refusal
        elif verdict.current and not verdict.other_epoch:
            try:  # somebody held its row: alone, with a short wait
                again = await database.run(complete_sql.lock_one(ids=[row["task_id"]]), *write(key, [row]))
                if again[1]:
                    taken |= _taken(again[1:])
                    continue
            except Unavailable:
                pass
            found[name] = Unavailable("the task's row is held by another call; nothing was changed")
        elif verdict.same_report and not verdict.other_epoch:
            found[name] = verdict.led_to
        else:
            found[name] = refusal = reports.not_current(verdict, row["epoch"])
            if final and verdict.token_fits and isinstance(refusal, StaleAttempt):
                if (outside := key.outside(verdict.type, verdict.pool, None)) is not None:
                    found[name] = outside  # not for good: a key that includes it can still have it kept
                else:
                    late.append(row)
    if late:
        await database.one(complete_sql.late(project=key.project, items=_json(late)))
    return found
