-- Cancels: queued or waiting → cancelled at once; running → cancelRequested, and its holder is told. Where a hook was still to be
-- asked what an attempt did, nobody will ask it now: queued or waiting → outcome-unknown.
-- Locks: tasks by ascending id. Called by cancel.cancel and cancel.cancel_all: lock · cancel.

-- :: lock
SELECT t.id FROM tasks t WHERE t.id = ANY(%(ids)s) ORDER BY t.id FOR NO KEY UPDATE

-- :: cancel
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
before AS MATERIALIZED (
    SELECT t.id, t.status, t.cancel_requested, t.attempt_id, t.attempt_ended,
           t.status <> 'running' AND (t.reconcile IS NOT NULL OR t.open_steps + t.asking_steps > 0) AS unasked
    FROM unnest(%(ids)s::uuid[]) AS wanted(id) CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted.id FOR NO KEY UPDATE) t
    WHERE t.project = %(project)s
), moved AS (
    UPDATE tasks t SET
        status = CASE WHEN t.status = 'running' THEN t.status WHEN b.unasked THEN 'outcome-unknown' ELSE 'cancelled' END,
        hold = NULL, wait = NULL, wake_at = NULL,
        finished_at = CASE WHEN t.status <> 'running' AND NOT b.unasked THEN clock.now END,
        failure = CASE WHEN b.unasked THEN json_build_object('code',
                CASE WHEN t.reconcile::json ->> 'reason' IN ('LEASE_EXPIRED', 'ATTEMPT_TIMEOUT') THEN t.reconcile::json ->> 'reason' ELSE 'RELEASED_UNSAFE' END,
            'message', 'cancelled before anybody could be asked what the attempt did; the effect may have happened',
            'details', CASE WHEN t.open_steps + t.asking_steps > 0 THEN json_build_object('step', open_step(t.id)) END,
            'attemptId', t.attempt_id)::text ELSE t.failure END,
        cancel_requested = true,
        -- an unknown outcome is still settled by the attempt's own late report
        attempt_ended = t.attempt_ended OR (t.status <> 'running' AND NOT b.unasked AND t.attempt_id IS NOT NULL),
        journal_seq = t.journal_seq + 1
    FROM before b, clock
    WHERE t.id = b.id AND t.id = ANY(%(ids)s) AND (b.status IN ('queued', 'waiting') OR (b.status = 'running' AND NOT b.cancel_requested))
    RETURNING t.*, b.attempt_id IS NOT NULL AND NOT b.attempt_ended AND b.status <> 'running' AND NOT b.unasked AS ends, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash)
    SELECT id, journal_seq, at, CASE status WHEN 'running' THEN 'cancel-requested' ELSE status END,
           CASE WHEN status <> 'cancelled' THEN attempt_id END,
           CASE status WHEN 'outcome-unknown' THEN failure ELSE json_build_object('reason', %(reason)s::text)::text END, CASE WHEN ends THEN attempt_id END, CASE WHEN ends THEN token_hash END
    FROM moved
)
SELECT b.id, b.status AS before, b.cancel_requested AS requested_before, m.id IS NOT NULL AS changed, m.attempt_id, m.worker_id, m.instance_id, m.concurrency_key, m.status,
       m.parent_id, m.cascades, m.schedule_owner, m.schedule_name
FROM before b LEFT JOIN moved m ON m.id = b.id
