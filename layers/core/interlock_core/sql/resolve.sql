-- A person settles an outcome-unknown task: → succeeded, failed (RESOLVED_FAILED), or queued again with one attempt more; or one
-- step of it: the step gets the outcome that was found and the task is queued, unless another step is open whose effect nobody
-- knows: then it stays outcome-unknown and names that one.
-- Locks: the task. Called by tasks.resolve: lock · resolve.

-- :: lock
SELECT t.id FROM tasks t WHERE t.project = %(project)s AND t.id = %(id)s FOR NO KEY UPDATE

-- :: resolve
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
before AS MATERIALIZED (
    SELECT t.*, s.name AS step, s.status = 'started' AS step_is_open, coalesce(s.reconciles, false) AS step_asks,
           coalesce(s.effect_safety = 'non-idempotent', false) AS step_counts,
           n.name AS next_step
    FROM (SELECT * FROM tasks WHERE project = %(project)s AND id = %(id)s FOR NO KEY UPDATE) t
    LEFT JOIN steps s ON s.task_id = t.id AND s.name = %(step)s
    LEFT JOIN LATERAL (
        SELECT o.name FROM steps o WHERE %(step)s::text IS NOT NULL AND o.task_id = t.id AND o.status = 'started' AND o.name <> %(step)s
          AND o.effect_safety = 'non-idempotent' AND NOT o.reconciles ORDER BY o.seq LIMIT 1) n ON true
), moved AS (
    UPDATE tasks t SET
        status = CASE WHEN %(step)s::text IS NULL AND %(as)s IN ('succeeded', 'failed') THEN %(as)s
                      WHEN b.next_step IS NOT NULL THEN t.status ELSE 'queued' END,
        hold = CASE WHEN t.concurrency_key IS NOT NULL AND b.next_step IS NULL AND (%(step)s::text IS NOT NULL OR %(as)s IN ('requeue', 'reconcile'))
                    THEN 'concurrency' END,
        due_at = CASE WHEN b.next_step IS NULL AND (%(step)s::text IS NOT NULL OR %(as)s IN ('requeue', 'reconcile')) THEN clock.now ELSE t.due_at END,
        result = CASE WHEN %(step)s::text IS NULL AND %(as)s = 'succeeded' THEN %(result)s END,
        failure = CASE WHEN %(step)s::text IS NULL AND %(as)s = 'failed'
                       THEN json_build_object('code', 'RESOLVED_FAILED', 'message', %(note)s::text, 'attemptId', t.attempt_id)::text
                       WHEN b.next_step IS NOT NULL THEN json_build_object('code', t.failure::json -> 'code', 'message', t.failure::json -> 'message',
                            'details', json_build_object('step', b.next_step), 'attemptId', t.attempt_id)::text END,
        finished_at = CASE WHEN %(step)s::text IS NULL AND %(as)s IN ('succeeded', 'failed') THEN clock.now END,
        max_attempts = CASE WHEN %(step)s::text IS NULL AND %(as)s IN ('succeeded', 'failed') THEN t.max_attempts
                            ELSE greatest(t.max_attempts, t.attempts + 1) END,
        cancel_requested = t.cancel_requested AND %(step)s::text IS NULL AND %(as)s IN ('succeeded', 'failed'),
        attempt_ended = true, releases = 0,
        reconcile = CASE WHEN %(as)s = 'reconcile' AND t.effect_safety = 'non-idempotent'
                         THEN json_build_object('attemptId', t.attempt_id, 'reason', 'RESOLVED')::text
                         -- what became of a step says nothing of what ran outside it: whoever was to be asked about that still is
                         WHEN %(step)s::text IS NOT NULL THEN coalesce(t.reconcile, CASE WHEN t.effect_safety = 'non-idempotent' AND t.reconciles
                             THEN json_build_object('attemptId', t.attempt_id, 'reason', 'RESOLVED')::text END) END,
        open_steps = CASE WHEN %(step)s::text IS NOT NULL THEN t.open_steps - (b.step_counts AND NOT b.step_asks)::integer
                          WHEN %(as)s = 'requeue' THEN 0 ELSE t.open_steps END,
        asking_steps = CASE WHEN %(step)s::text IS NOT NULL THEN t.asking_steps - (b.step_counts AND b.step_asks)::integer
                            WHEN %(as)s = 'requeue' THEN 0 ELSE t.asking_steps END,
        steps_bytes = t.steps_bytes + CASE WHEN %(step)s::text IS NOT NULL AND %(as)s = 'succeeded' THEN octet_length(%(result)s::text) ELSE 0 END,
        journal_seq = t.journal_seq + CASE WHEN %(step)s::text IS NULL AND %(as)s IN ('succeeded', 'failed') THEN 2 ELSE 1 END
    FROM before b, clock
    WHERE t.id = b.id AND b.status = 'outcome-unknown' AND b.attempt_id::text = %(attempt_id)s
      AND (%(step)s::text IS NULL OR b.step_is_open)
    RETURNING t.*, NOT b.attempt_ended AS ends, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash, report_hash)
    SELECT id, journal_seq - (finished_at IS NOT NULL)::integer, at, 'resolved', attempt_id,
           json_build_object('as', %(as)s::text, 'note', %(note)s::text, 'keyId', %(key_id)s::text, 'step', %(step)s::text)::text,
           CASE WHEN ends THEN attempt_id END, CASE WHEN ends THEN token_hash END, %(hash)s
    FROM moved
), ended AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq, at, status, attempt_id, coalesce(failure, '{}') FROM moved WHERE finished_at IS NOT NULL
), audited AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, project, at, %(key_id)s, 'task-resolved', id::text,
           json_build_object('as', %(as)s::text, 'note', %(note)s::text, 'step', %(step)s::text)::text FROM moved
), closed AS (  -- so that they run again; asked for by `reconcile`, they stay open
    UPDATE steps s SET
        status = CASE WHEN %(step)s::text IS NOT NULL AND %(as)s = 'succeeded' THEN 'succeeded' ELSE 'failed' END,
        final = %(step)s::text IS NOT NULL AND %(as)s <> 'requeue',
        outcome_seq = CASE WHEN %(step)s::text IS NOT NULL AND %(as)s <> 'requeue' THEN m.journal_seq END, tries = s.tries + 1,
        output = CASE WHEN %(step)s::text IS NOT NULL AND %(as)s = 'succeeded' THEN %(result)s END,
        error = CASE WHEN %(step)s::text IS NULL OR %(as)s <> 'succeeded'
                     THEN json_build_object('code', CASE %(as)s WHEN 'failed' THEN 'RESOLVED_FAILED' ELSE 'REQUEUED' END, 'message', %(note)s::text)::text END
    FROM moved m
    WHERE s.task_id = m.id AND s.status = 'started' AND (s.name = %(step)s OR %(step)s::text IS NULL AND %(as)s = 'requeue')
)
SELECT b.id, b.status AS before, b.attempt_id, b.step_is_open, m.id IS NOT NULL AS changed, m.type, m.schema_version, m.pool,
       m.concurrency_key, m.status, m.due_at, m.parent_id, m.cascades, m.schedule_owner,
       m.schedule_name,
       -- a repeat: the same verdict, with the same result, was already given on the same attempt
       EXISTS (SELECT FROM journal j WHERE j.task_id = b.id AND j.kind = 'resolved' AND j.attempt_id::text = %(attempt_id)s
                 AND j.data::json ->> 'as' = %(as)s AND j.data::json ->> 'step' IS NOT DISTINCT FROM %(step)s::text
                 AND coalesce(j.report_hash = %(hash)s, true)) AS repeated
FROM before b LEFT JOIN moved m ON m.id = b.id
