"""Tests of your own handlers: without a service (`drive`), or with a real one (the pytest fixture `interlock_service`).

    run = drive(create_account, {"email": "a@b"}, stubs={"create": {"id": 7}})
    run.crash_after("create"); run.advance(120); run.signal("verified", True)
    assert run.status == "succeeded" and run.calls("create") == 1

To read: `driver` (what a test says), `playing` (how an attempt runs), `memory` (what a service would store and decide),
`fixture` (the real service for pytest).
"""

from interlock.testing.driver import Drive, drive

__all__ = ["Drive", "drive"]
