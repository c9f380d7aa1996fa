-- Reading tasks. No locks. Called by tasks.get, tasks.find_all, tasks.journal and after a mutation to show what is now true.

-- :: view
-- Whether the latest attempt is among those that count its row does not tell; its claim does.
SELECT t.*, (SELECT app_now()) AS now,
       CASE WHEN t.status = 'running' THEN t.attempts + 1 WHEN t.attempts = 0 THEN 1
            ELSE coalesce((SELECT (j.data::json ->> 'number')::integer FROM journal j
                           WHERE j.task_id = t.id AND j.kind = 'claimed' AND j.attempt_id = t.attempt_id ORDER BY j.seq DESC LIMIT 1),
                          t.attempts) END AS attempt_number
FROM unnest(%(ids)s::uuid[]) AS wanted(id) JOIN tasks t ON t.id = wanted.id
WHERE t.project = %(project)s

-- :: page (planned anew)
SELECT t.id, t.project, t.type, t.schema_version, t.pool, t.status, t.hold, t.wait, t.wake_at, t.priority, t.failure, t.progress, t.tags, t.trace,
       t.idempotency_key, t.concurrency_key, t.concurrency_limit, t.max_attempts, t.initial_delay_seconds, t.multiplier,
       t.max_delay_seconds, t.jitter, t.lease_seconds, t.timeout_seconds, t.start_deadline_seconds, t.created_at, t.due_at,
       t.started_at, t.finished_at, t.attempts, t.cancel_requested, t.rerun_of, t.parent_id, t.schedule_owner, t.schedule_name,
       t.effect_scope, t.journal_seq, t.attempt_id, t.fence, t.attempt_ended, t.worker_id, t.instance_id, t.effect_safety,
       t.attempt_started_at, t.lease_expires_at, t.deadline_at, (SELECT app_now()) AS now,
       CASE WHEN t.status = 'running' THEN t.attempts + 1 WHEN t.attempts = 0 THEN 1
            ELSE coalesce((SELECT (j.data::json ->> 'number')::integer FROM journal j
                           WHERE j.task_id = t.id AND j.kind = 'claimed' AND j.attempt_id = t.attempt_id ORDER BY j.seq DESC LIMIT 1),
                          t.attempts) END AS attempt_number
FROM tasks t
WHERE t.project = %(project)s AND t.project || '' = %(project)s  -- the second for the index `tasks_list`
  AND (%(after_at)s::timestamptz IS NULL OR (t.created_at, t.id) < (%(after_at)s, %(after_id)s))
  AND (%(status)s::text[] IS NULL OR t.status = ANY(%(status)s))
  AND (%(type)s::text IS NULL OR t.type = %(type)s)
  AND (%(schema_version)s::integer IS NULL OR t.schema_version = %(schema_version)s)
  AND (%(pool)s::text IS NULL OR t.pool = %(pool)s)
  AND (%(tag)s::jsonb IS NULL OR t.tags @> %(tag)s)
  AND (%(idempotency_key)s::text IS NULL OR t.idempotency_key = %(idempotency_key)s)
  AND (%(parent_id)s::uuid IS NULL OR t.parent_id = %(parent_id)s)
  AND (%(rerun_of)s::uuid IS NULL OR t.rerun_of = %(rerun_of)s)
  AND (%(schedule_owner)s::text IS NULL OR t.schedule_owner = %(schedule_owner)s)
  AND (%(schedule_name)s::text IS NULL OR t.schedule_name = %(schedule_name)s)
  AND (%(failure_code)s::text IS NULL OR t.failure::json ->> 'code' = %(failure_code)s)
  AND (%(created_after)s::timestamptz IS NULL OR t.created_at > %(created_after)s)
  AND (%(created_before)s::timestamptz IS NULL OR t.created_at < %(created_before)s)
  AND (%(finished_after)s::timestamptz IS NULL OR t.finished_at > %(finished_after)s)
  AND (%(finished_before)s::timestamptz IS NULL OR t.finished_at < %(finished_before)s)
ORDER BY t.created_at DESC, t.id DESC
LIMIT %(limit)s

-- :: journal
SELECT j.seq, j.at, j.kind, j.attempt_id, j.data FROM journal j
WHERE j.task_id = %(id)s AND j.seq > %(after)s ORDER BY j.seq LIMIT %(limit)s

-- :: attempts
-- The latest ones: a run that waits often has thousands.
SELECT * FROM (
    SELECT j.seq, j.at, j.kind, j.attempt_id, j.data FROM journal j
    WHERE j.task_id = %(id)s AND j.attempt_id IS NOT NULL
      AND j.kind IN ('claimed', 'lease-expired', 'lease-recovered', 'released', 'retry-scheduled', 'suspended', 'succeeded', 'failed',
                     'cancelled', 'outcome-unknown', 'resolved', 'late-report')
    ORDER BY j.seq DESC LIMIT 1000) latest
ORDER BY seq
