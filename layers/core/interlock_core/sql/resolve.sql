-- A person settles an outcome-unknown task: → succeeded, failed (RESOLVED_FAILED), or queued again with one attempt more.
-- Locks: the task. Called by tasks.resolve: lock · resolve.

-- :: lock
SELECT t.id FROM tasks t WHERE t.project = %(project)s AND t.id = %(id)s FOR NO KEY UPDATE

-- :: resolve
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
before AS MATERIALIZED (
    SELECT t.* FROM tasks t WHERE t.project = %(project)s AND t.id = %(id)s FOR NO KEY UPDATE
), moved AS (
    UPDATE tasks t SET
        status = CASE %(as)s WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' ELSE 'queued' END,
        hold = CASE WHEN %(as)s = 'requeue' AND t.concurrency_key IS NOT NULL THEN 'concurrency' END,
        due_at = CASE WHEN %(as)s = 'requeue' THEN clock.now ELSE t.due_at END,
        result = CASE WHEN %(as)s = 'succeeded' THEN %(result)s END,
        failure = CASE WHEN %(as)s = 'failed' THEN json_build_object('code', 'RESOLVED_FAILED', 'message', %(note)s::text, 'attemptId', t.attempt_id)::text END,
        finished_at = CASE WHEN %(as)s = 'requeue' THEN NULL ELSE clock.now END,
        max_attempts = CASE WHEN %(as)s = 'requeue' THEN greatest(t.max_attempts, t.attempts + 1) ELSE t.max_attempts END,
        cancel_requested = t.cancel_requested AND %(as)s <> 'requeue',
        attempt_ended = true, releases = 0,
        journal_seq = t.journal_seq + CASE WHEN %(as)s = 'requeue' THEN 1 ELSE 2 END
    FROM before b, clock
    WHERE t.id = b.id AND b.status = 'outcome-unknown' AND b.attempt_id::text = %(attempt_id)s
    RETURNING t.*, NOT b.attempt_ended AS ends, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash, report_hash)
    SELECT id, journal_seq - (status <> 'queued')::integer, at, 'resolved', attempt_id,
           json_build_object('as', %(as)s::text, 'note', %(note)s::text, 'keyId', %(key_id)s::text)::text,
           CASE WHEN ends THEN attempt_id END, CASE WHEN ends THEN token_hash END, NULL
    FROM moved
), ended AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq, at, status, attempt_id, coalesce(failure, '{}') FROM moved WHERE status <> 'queued'
), audited AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, project, at, %(key_id)s, 'task-resolved', id::text, json_build_object('as', %(as)s::text, 'note', %(note)s::text)::text FROM moved
)
SELECT b.id, b.status AS before, b.attempt_id, m.id IS NOT NULL AS changed, m.type, m.schema_version, m.pool, m.concurrency_key,
       -- a repeat: the same verdict was already given on the same attempt
       EXISTS (SELECT FROM journal j WHERE j.task_id = b.id AND j.kind = 'resolved' AND j.attempt_id::text = %(attempt_id)s
                 AND j.data::json ->> 'as' = %(as)s) AS repeated
FROM before b LEFT JOIN moved m ON m.id = b.id
