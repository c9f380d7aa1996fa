"""What the model keeps: tasks, attempts, steps, signals and waits, in whole seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SETTLED = ("succeeded", "failed", "cancelled")
UNENDED = ("running", "queued", "outcome-unknown")
UNSAFE = "non-idempotent"

Asked = tuple[str, str]
"""What a claim is told of an attempt before it: (attemptId, reason)."""
Place = tuple[str, str]
"""A schedule: (owner, name); the API's own owner is `""`."""


class Refused(Exception):
    """The call is refused with this code."""


@dataclass
class Attempt:
    """One lease of one task."""

    id: str
    fence: int
    safety: str
    reconciles: bool
    told: Asked | None  # what it was asked to find out first
    lease_end: int
    deadline: int | None
    claim: str
    tokens: int = 1  # how many were given: only the latest counts
    reported: bool = False
    expired: bool = False  # its expiry was counted
    ended: bool = False
    report: tuple[Any, ...] | None = None  # what ended it, where that was its own report
    led_to: str = ""

    @property
    def safe(self) -> bool:
        """Whether what runs outside its steps may be repeated."""
        return self.safety != UNSAFE or self.reconciles


@dataclass
class Step:
    """One name of a task: a step, a finished wait, or a child."""

    kind: str
    seq: int
    status: str
    final: bool
    safety: str | None = None
    reconciles: bool = False
    tries: int = 0
    output: Any = None
    ended: int | None = None  # seq of its outcome
    attempt: str = ""
    child: str | None = None
    detached: bool = False

    @property
    def open(self) -> bool:
        """Started, not safe to repeat, and nobody knows what came of it."""
        return self.status == "started" and self.safety == UNSAFE


@dataclass
class Signal:
    """One signal; `taken` by the wait of this name."""

    name: str
    payload: Any
    at: int
    seq: int
    taken: str | None = None


@dataclass
class Wait:
    """What a waiting task waits for."""

    name: str
    wake: int | None
    signal: str | None
    children: list[str] | None


@dataclass(eq=False)
class Task:
    """One task."""

    id: str
    type: str
    body: dict[str, Any]  # as it was submitted
    due: int
    first_due: int
    max_attempts: int
    start_deadline: int | None
    status: str = "queued"
    attempts: int = 0
    fence: int = 0
    cancel_requested: bool = False
    code: str | None = None  # of its failure
    step: str | None = None  # that its failure names
    attempt: Attempt | None = None
    reconcile: Asked | None = None  # what its next attempt is to find out first
    releases: int = 0  # and suspensions in a row, with nothing new in between
    finished: int | None = None
    result: Any = None
    wait: Wait | None = None
    parent: str | None = None
    rerun_of: str | None = None
    schedule: Place | None = None  # that made it
    before: list[str] = field(default_factory=list)  # tasks of its schedule that are to end before it starts
    policy: dict[str, Any] = field(default_factory=dict)  # what its first claim took from a registration
    effects: str = ""  # the scope of its effect keys
    big: int = 0  # outputs that count against the limit of bytes
    steps: dict[str, Step] = field(default_factory=dict)
    signals: dict[str, Signal] = field(default_factory=dict)  # by key, in their order
    journal: list[str] = field(default_factory=list)
    resolved: set[tuple[str, str, str | None, Any]] = field(default_factory=set)  # attempt, verdict, step, result
    late: set[str] = field(default_factory=set)  # attempts whose late report was kept

    def note(self, *kinds: str) -> int:
        """Journals these events; the seq of the last."""
        self.journal += kinds
        return len(self.journal)

    def fail(self, code: str | None, step: str | None = None) -> None:
        """Why it failed or is unknown; None: it did not."""
        self.code, self.step = code, step

    def move(self, status: str, now: int) -> None:
        """Its next status."""
        self.status = status
        self.finished = now if status in SETTLED else None

    def open_step(self) -> str | None:
        """The step that an unknown outcome names: one that nobody can ask for first, then the oldest."""
        found = sorted((step.reconciles, step.seq, name) for name, step in self.steps.items() if step.open)
        return found[0][2] if found else None

    def is_open(self, asked: bool) -> bool:
        """Whether a step is open; one with a hook is not where somebody will be `asked`."""
        return any(step.open and not (step.reconciles and asked) for step in self.steps.values())

    def children(self) -> dict[str, Step]:
        """Its children by name."""
        return {name: step for name, step in self.steps.items() if step.child is not None}

    @property
    def key(self) -> str | None:
        """Its concurrency key."""
        found: str | None = self.body["concurrency"]["key"] if "concurrency" in self.body else None
        return found

    @property
    def limit(self) -> int:
        """How many may hold its key."""
        found: int = self.body["concurrency"]["limit"] if "concurrency" in self.body else 0
        return found

    def policy_of(self, name: str) -> Any:
        """What its submit said, else the registration that served its first claim; None: neither did."""
        return self.body.get(name, self.policy.get(name))
