"""Keys of a project: made, listed, revoked, rotated by an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from interlock.client import Client
from interlock.fleet import KeyInfo, NewKey
from interlock.reading import fill, path_of, read_pages
from interlock.settings import KeyKind
from interlock.submission import make_key, to_seconds
from interlock.tasks import write_time


class Keys:
    """The keys of the operator's project: `Operator.keys`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        kind: KeyKind,
        *,
        types: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
        worker_ids: Sequence[str] | None = None,
        may_schedule: bool | None = None,
        expires_at: datetime | str | None = None,
        project: str | None = None,
        idempotency_key: str | None = None,
    ) -> NewKey:
        """Make a key; its `key` is told this once. `project` needs an admin's key.

        `types` (globs such as `audio/*`), `pools` and `worker_ids` narrow it. With an `idempotency_key` of the caller's
        a repeat answers the first key, without its secret. Without one, a secret that was lost on its way here is
        of no use to anybody: that key is revoked, and another is made.
        """
        body: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "types": list_of(types),
            "pools": list_of(pools),
            "workerIds": list_of(worker_ids),
            "maySchedule": may_schedule,
            "expiresAt": write_time(expires_at) if expires_at is not None else None,
            "project": project,
        }
        made = self._make("/v1/keys", {name: value for name, value in body.items() if value is not None}, idempotency_key)
        if made.key is None and idempotency_key is None and project is None:
            self.revoke(made.id)
            made = self._make("/v1/keys", {name: value for name, value in body.items() if value is not None}, None)
        return made

    def list(self) -> Iterator[KeyInfo]:
        """The project's keys, newest first, without secrets."""
        return (fill(KeyInfo, item) for item in read_pages(self._client, "/v1/keys"))

    def revoke(self, key_id: str) -> bool:
        """Refuse a key everywhere within five seconds. False if it was revoked before."""
        return not self._client.request("POST", path_of("keys", key_id, "revoke"), json={}).get("duplicate")

    def rotate(self, key_id: str, overlap: float | timedelta, *, idempotency_key: str | None = None) -> NewKey:
        """Make a key with the rights of another, which lives on for `overlap` (seconds, or a timedelta).

        A new secret that was lost on its way here is replaced by one more rotation, unless the caller gave a key.
        """
        made = self._make(path_of("keys", key_id, "rotate"), {"overlapSeconds": to_seconds(overlap)}, idempotency_key)
        if made.key is None and idempotency_key is None:
            made = self._make(path_of("keys", made.id, "rotate"), {"overlapSeconds": 0}, None)
        return made

    def _make(self, path: str, body: dict[str, Any], idempotency_key: str | None) -> NewKey:
        key = make_key() if idempotency_key is None else idempotency_key
        return fill(NewKey, self._client.request("POST", path, json={**body, "idempotencyKey": key}))


def list_of(values: Sequence[str] | None) -> list[str] | None:
    """A list for the wire. A single text would be taken for its letters."""
    if isinstance(values, str):
        raise TypeError(f"a list of texts is needed, got {values!r}")
    return None if values is None else [*values]
