-- Hints: a transaction of its own, after the work's commit and without waiting for the disk. NOTIFY takes a database-wide lock
-- while it commits, so it must never ride in the work's transaction. A lost hint costs one poll.

-- :: send
SELECT set_config('synchronous_commit', 'off', true), pg_notify('interlock', payload) FROM unnest(%(payloads)s::text[]) AS payload
