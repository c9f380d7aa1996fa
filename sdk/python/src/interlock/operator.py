"""The operator's side: settle what is unknown, stop and start what runs, set limits, hand out keys, read what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from interlock.client import ClientOptions, open_client
from interlock.fleet import AuditEntry, BulkDone, HeldLimit, Limits, SubmitRate, TaskTypeInfo, WorkerInfo
from interlock.keyring import Keys
from interlock.producer import TaskProducer
from interlock.reading import TaskFilter, fill, filter_to_wire, path_of, read_pages, task_path, type_path
from interlock.submission import make_key
from interlock.tasks import Task

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Operator:
    """The calls of an operator. Thread-safe; safe after fork; needs a key of kind `operator`.

    URL and key come from the arguments, else from `INTERLOCK_URL` and `INTERLOCK_OPERATOR_KEY`, else from the profile; the
    other options are those of ClientOptions.
    `tasks` reads, waits for, cancels and reruns tasks, as a TaskProducer does, with the operator's key (which cannot
    submit); `keys` makes and revokes keys. Every call raises ApiError when the service refuses and Unreachable when no
    answer came in time; each may be repeated, since those that would act twice carry an idempotency key.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self.client = open_client("operator", url, key, **options)
        self.tasks = TaskProducer(client=self.client)
        self.keys = Keys(self.client)

    def __repr__(self) -> str:
        return f"Operator(url={self.client.url!r})"

    def __enter__(self) -> Operator:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def resolve(
        self,
        task_id: str,
        how: Literal["succeeded", "failed", "requeue", "reconcile"],
        *,
        note: str,
        attempt_id: str | None = None,
        step: str | None = None,
        result: Any = None,
    ) -> Task:
        """Settle an `outcome-unknown` task as a person found it to be, or queue it again.

        `requeue` runs it again, `reconcile` lets its reconcile hook find out first. With `step`, it is that step which is
        settled (`succeeded` with `result` as its output, or `failed`) or run again (`requeue`), and the task goes on.
        `attempt_id` names the attempt that was looked into; absent, the task's latest. Raises ApiError with
        `TASK_NOT_UNKNOWN` where there is nothing to resolve, or another attempt is the unknown one.
        """
        if attempt_id is None:
            latest = self.tasks.get(task_id).attempt
            attempt_id = latest.id if latest is not None else "none"
        body: dict[str, Any] = {"as": how, "attemptId": attempt_id, "note": note}
        if step is not None:
            body["step"] = step
        if how == "succeeded":
            body["result"] = result
        return Task.read(self.client.request("POST", f"{task_path(task_id)}/resolve", json=body))

    def bulk(
        self,
        action: Literal["cancel", "rerun"],
        filter: TaskFilter,
        *,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> BulkDone:
        """Cancel or rerun the tasks of a filter, newest first, at most 10,000 a call; `more` says to call again.

        `dry_run` only counts. Tasks whose outcome is unknown are never rerun. Raises ValueError for an unknown filter.
        """
        body = {
            "filter": filter_to_wire(filter),
            "action": action,
            "dryRun": dry_run,
            "idempotencyKey": make_key() if idempotency_key is None else idempotency_key,
        }
        return fill(BulkDone, self.client.request("POST", "/v1/tasks/bulk", json=body))

    def pause_type(self, type: str, schema_version: int = 1) -> bool:
        """Let nobody claim the type; running attempts go on. False if it was paused before."""
        return self._change(f"{type_path(type, schema_version)}/pause")

    def resume_type(self, type: str, schema_version: int = 1) -> bool:
        """Let the type be claimed again. False if it was not paused."""
        return self._change(f"{type_path(type, schema_version)}/resume")

    def pause_project(self) -> bool:
        """Let nobody claim anything; submits are stored, running attempts go on. False if it was paused before."""
        return self._change("/v1/project/pause")

    def resume_project(self) -> bool:
        """Let the project's tasks be claimed again. False if it was not paused."""
        return self._change("/v1/project/resume")

    def task_types(self) -> Iterator[TaskTypeInfo]:
        """Every type that was registered or has tasks."""
        return (fill(TaskTypeInfo, item) for item in read_pages(self.client, "/v1/task-types"))

    def task_type(self, type: str, schema_version: int = 1) -> TaskTypeInfo:
        """One type, with the schemas and policies of its handlers."""
        return fill(TaskTypeInfo, self.client.request("GET", type_path(type, schema_version)))

    def workers(self) -> Iterator[WorkerInfo]:
        """The project's workers."""
        return (fill(WorkerInfo, item) for item in read_pages(self.client, "/v1/workers"))

    def worker(self, worker_id: str) -> WorkerInfo:
        """One worker, with the attempts that it runs."""
        return fill(WorkerInfo, self.client.request("GET", path_of("workers", worker_id)))

    def drain_worker(self, worker_id: str) -> list[str]:
        """Ask the worker's processes that are alive now to claim no more, finish and end; their instance ids."""
        return [str(name) for name in self.client.request("POST", path_of("workers", worker_id, "drain"), json={})["instances"]]

    def remove_worker(self, worker_id: str) -> bool:
        """Take the worker's registration away; processes that run go on. False if it was gone before."""
        return not self.client.request("DELETE", path_of("workers", worker_id)).get("duplicate")

    def limits(self) -> Limits:
        """The limits of concurrency keys, and the rate of submits."""
        keys = tuple(fill(HeldLimit, item) for item in read_pages(self.client, "/v1/limits", page_size=200))
        return Limits(keys, read_rate(self.client.request("GET", "/v1/limits", params={"limit": 1}).get("rate")))

    def set_limit(self, key: str, limit: int) -> None:
        """Let at most `limit` tasks hold a concurrency key (a task's own smaller limit counts too); 0: none starts."""
        self.client.request("PUT", "/v1/limits", params={"key": key}, json={"limit": limit})

    def drop_limit(self, key: str) -> None:
        """Let only the tasks' own limits count for a concurrency key."""
        self.client.request("DELETE", "/v1/limits", params={"key": key})

    def set_rate(self, per_second: float | None, burst: int | None = None) -> None:
        """Limit the submits of each producer key; None for no limit. `burst`, absent, is one second's worth."""
        if per_second is not None and burst is None:
            burst = max(1, round(per_second))
        self.client.request("PUT", "/v1/limits/rate", json={"perSecond": per_second, "burst": burst})

    def audit(self) -> Iterator[AuditEntry]:
        """Who did what, when, to what: newest first."""
        return (fill(AuditEntry, item) for item in read_pages(self.client, "/v1/audit"))

    def doctor(self) -> Mapping[str, Any]:
        """The health of the service, as protocol.md §8 tells it."""
        return self.client.request("GET", "/v1/doctor")

    def _change(self, path: str) -> bool:
        return not self.client.request("POST", path, json={}).get("duplicate")


def read_rate(view: Any) -> SubmitRate | None:
    """The rate in an answer; None where there is none."""
    return fill(SubmitRate, view) if isinstance(view, Mapping) and view.get("perSecond") is not None else None
