"""What a worker serves: one handler per task type and schema version, and how it declares itself."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from interlock.retry import Retry

if TYPE_CHECKING:
    from interlock.contract import TaskContract

EffectSafety = Literal["pure", "idempotent", "non-idempotent"]
LeaseDoubt = Literal["finish", "cancel"]
Isolation = Literal["thread", "process"]

TYPE_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
WORKER_ID_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Handler:
    """A function that runs the tasks of one type and version. Durations are seconds."""

    type: str
    schema_version: int
    fn: Callable[..., Any]
    effect_safety: EffectSafety
    retry: Retry | None = None
    timeout: float | None = None
    max_concurrent: int | None = None
    lease: float | None = None
    start_deadline: float | None = None
    description: str | None = None
    on_lease_doubt: LeaseDoubt | None = None
    contract: TaskContract[Any, Any] | None = None
    isolation: Isolation = "thread"
    reconcile: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_type(self.type, self.schema_version)
        if self.effect_safety not in get_args(EffectSafety):
            raise ValueError(
                f"effect_safety is one of {', '.join(get_args(EffectSafety))}, got {self.effect_safety!r}: "
                "pure has no effect outside, idempotent may be repeated, non-idempotent must not be"
            )
        check_parameters(self.fn, "the handler")
        if self.reconcile is not None:
            check_parameters(self.reconcile, "the reconcile hook")
        if self.on_lease_doubt not in (None, *get_args(LeaseDoubt)):
            raise ValueError(f"on_lease_doubt is finish or cancel, got {self.on_lease_doubt!r}")
        if self.isolation not in get_args(Isolation):
            raise ValueError(f"isolation is thread or process, got {self.isolation!r}")
        if self.reconcile is not None and not self.is_async and inspect.iscoroutinefunction(self.reconcile):
            raise ValueError("the reconcile hook of a sync handler is sync as well")
        if self.isolation == "process" and self.is_async:
            raise ValueError('isolation="process" is for sync handlers: a coroutine shares the loop of this process')
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError("max_concurrent is at least 1")

    @cached_property
    def key(self) -> tuple[str, int]:
        """What identifies the handler within its worker."""
        return self.type, self.schema_version

    @cached_property
    def is_async(self) -> bool:
        """Whether the function runs on the loop."""
        return inspect.iscoroutinefunction(self.fn) or inspect.iscoroutinefunction(
            getattr(self.fn, "__call__", None)  # noqa: B004 (asks what calling it gives, not whether it can be called)
        )

    @property
    def cancels_in_doubt(self) -> bool:
        """Whether a lease in doubt stops the function: by default where a second run beside it would do harm."""
        return (self.on_lease_doubt or ("cancel" if self.effect_safety == "non-idempotent" else "finish")) == "cancel"

    def to_registration(self) -> dict[str, Any]:
        """The handler as the registration names it."""
        fields: dict[str, Any] = self.to_claim(None)
        optional = {
            "slots": self.max_concurrent,
            "description": self.description,
            "retry": self.retry.to_wire() if self.retry else None,
            "timeoutSeconds": self.timeout,
            "leaseSeconds": self.lease,
            "startDeadlineSeconds": self.start_deadline,
        }
        fields.update((name, value) for name, value in optional.items() if value is not None)
        if self.contract is not None:
            fields.update(self.contract.schemas())
        return fields

    def to_claim(self, slots: int | None) -> dict[str, Any]:
        """The handler as a claim names it; `slots` are those free for it, if it has a limit of its own."""
        fields: dict[str, Any] = {
            "type": self.type,
            "schemaVersion": self.schema_version,
            "effectSafety": self.effect_safety,
        }
        if self.reconcile is not None:
            fields["reconciles"] = True
        if slots is not None:
            fields["slots"] = slots
        return fields


def declare(handler: Handler) -> None:
    """Remember at the function how it was declared, for tests that drive it by itself."""
    with contextlib.suppress(AttributeError, TypeError):  # a callable that takes no attribute
        handler.fn.__interlock__ = handler  # type: ignore[attr-defined]


def find_declared(fn: Any) -> Handler | None:
    """How a function was declared last, if it was."""
    found = getattr(fn, "__interlock__", None)
    return found if isinstance(found, Handler) else None


def check_parameters(fn: Callable[..., Any], what: str) -> None:
    """Raises TypeError where the function cannot be called with an input and a context: better now than for every task."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # of a callable that does not tell
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"{what} {name}{signature} is called with two arguments, (input, ctx)") from None


def check_type(type_: str, schema_version: int) -> None:
    """Raises ValueError for what is no task type or no version."""
    if not TYPE_FORM.fullmatch(type_):
        raise ValueError(
            f"{type_!r} is no task type: it is group/name, and the version is a number of its own, "
            'as in handle("audio/transcribe", 1, …)'
        )
    if type(schema_version) is not int or schema_version < 1:
        raise ValueError(f"the schema version is a whole number from 1, got {schema_version!r}")
