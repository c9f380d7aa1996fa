-- Fails tasks that nobody started in time: queued, never started → failed START_DEADLINE_EXCEEDED.
-- Locks: tasks with SKIP LOCKED. Called by leases.sweep; the claim never hands such a task out in the meantime.

-- :: settle
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
late AS MATERIALIZED (
    SELECT t.id FROM tasks t
    WHERE t.status = 'queued' AND t.started_at IS NULL AND t.start_deadline_at <= (SELECT now FROM clock)
    ORDER BY t.start_deadline_at LIMIT 500 FOR NO KEY UPDATE OF t SKIP LOCKED
), moved AS (
    UPDATE tasks t SET status = 'failed', hold = NULL, finished_at = clock.now, journal_seq = t.journal_seq + 1,
        failure = json_build_object('code', 'START_DEADLINE_EXCEEDED',
            'message', format('no worker started the task within %%s seconds of its due time', t.start_deadline_seconds))::text
    FROM clock WHERE t.id = ANY(ARRAY(SELECT id FROM late))
    RETURNING t.*
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data) SELECT id, journal_seq, finished_at, 'failed', failure FROM moved
)
SELECT id, project, status, concurrency_key, parent_id, cascades, schedule_owner, schedule_name FROM moved
