"""The backoff of every policy that a submit or a handler may name (protocol: transitions)."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from pydantic import ValidationError

from interlock_core.wire.producer import Retry


def test_b17_no_policy_at_any_attempt_overflows_or_underflows(database_url: str) -> None:
    policies = itertools.product(
        [0.0, 1e-6, 1.0, 315_360_000.0],
        [1.0, 1.0000000000000002, 2.0, 1000.0],
        [0.0, 1e-6, 300.0, 315_360_000.0],
        [0.0, 1e-6, 0.2, 1.0],
    )
    names = ("initialDelaySeconds", "multiplier", "maxDelaySeconds", "jitter")
    with psycopg.connect(database_url, autocommit=True) as connection:
        for policy in policies:
            Retry.model_validate(dict(zip(names, policy, strict=True)))
            initial, _, most, jitter = policy
            rows = connection.execute(
                "SELECT n, backoff_seconds(n, %s, %s, %s, %s, chance) AS wait,"
                " now() + make_interval(secs => backoff_seconds(n, %s, %s, %s, %s, chance))"
                " FROM unnest(ARRAY[1, 2, 40, 64, 1100, 10001]) n, unnest(ARRAY[0, 1e-16, 0.5, 0.9999999999999999]::float8[]) chance",
                policy * 2,
            ).fetchall()
            for n, wait, _ in rows:
                assert 0 <= wait <= most, (n, policy)
                if jitter == 0 and n == 1:
                    assert wait == min(initial, most)


@pytest.mark.parametrize("name", ["initialDelaySeconds", "maxDelaySeconds", "jitter"])
@pytest.mark.parametrize("value", [5e-324, 1e-300, 9e-7, -1.0, 1e300, float("inf"), float("nan")])
def test_b17_a_policy_beyond_arithmetic_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        Retry.model_validate({name: value})
