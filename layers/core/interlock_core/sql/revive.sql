-- Takes an expiry back: a report of an attempt that nobody replaced finds its task queued or outcome-unknown → running again.
-- Locks: the task, which the statement before has locked. Called by steps.store and children.spawn, before their own statement.

-- :: revive
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
mine AS MATERIALIZED (
    SELECT t.id FROM json_to_record(%(item)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer)
    CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE) t
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status IN ('queued', 'outcome-unknown') AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
), moved AS (
    UPDATE tasks t SET
        status = 'running', hold = NULL, failure = NULL,
        reconcile = CASE WHEN t.reconcile::json ->> 'attemptId' = t.attempt_id::text THEN t.reconcile::json ->> 'told' ELSE t.reconcile END,
        attempts = t.attempts - t.attempt_expired::integer, attempt_expired = false, attempt_reported = true,
        lease_expires_at = least(clock.now + make_interval(secs => t.lease_seconds), t.deadline_at + interval '30 seconds'),
        journal_seq = t.journal_seq + 1
    FROM mine m, clock WHERE t.id = m.id
    RETURNING t.id, t.journal_seq, t.attempt_id, t.concurrency_key, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id) SELECT id, journal_seq, at, 'lease-recovered', attempt_id FROM moved
)
SELECT id, concurrency_key FROM moved
