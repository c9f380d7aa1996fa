-- Settles leases that ended without a report: running → queued (after its backoff), failed, cancelled or outcome-unknown.
-- Expiry alone does not end the attempt: until somebody else claims the task, a late report of it is still believed.
-- The policy is the one stored with the task; no registry is asked.
-- Locks: tasks with SKIP LOCKED. Called by claims.claim (its own handlers) and leases.sweep (every group), ≤ 100 a call.

-- :: groups
SELECT project, type, schema_version, pool, count(*) AS lapsed FROM tasks
WHERE status = 'running' AND lease_expires_at <= (SELECT app_now()) GROUP BY 1, 2, 3, 4 LIMIT 1000

-- :: lapsed
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
lapsed AS MATERIALIZED (  -- the whole rows as they were locked: a cancel that came meanwhile must be seen
    SELECT t.* FROM clock, json_to_recordset(%(groups)s::json) AS g(project text, type text, schema_version integer, pool text)
    CROSS JOIN LATERAL (
        SELECT t.* FROM tasks t
        WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'running' AND t.lease_expires_at <= clock.now
        LIMIT 100 FOR NO KEY UPDATE OF t SKIP LOCKED) t
    LIMIT 100
), decided AS (
    SELECT t.id, e.status, e.code, e.counts, t.cancel_requested,
           CASE WHEN t.open_steps + t.asking_steps > 0 THEN open_step(t.id) END AS step,
           CASE WHEN t.deadline_at <= clock.now THEN 'ATTEMPT_TIMEOUT' ELSE 'LEASE_EXPIRED' END AS why,
           clock.now + make_interval(secs => backoff_seconds(t.attempts + 1, t.initial_delay_seconds, t.multiplier, t.max_delay_seconds,
                                                             t.jitter, random())) AS again_at
    FROM lapsed t CROSS JOIN clock
    -- without an attempt left (a cancel leaves none) nobody will ask what a hook could tell: that is not known, neither a failure nor
    -- a cancel; nor is what this attempt itself was to find out
    CROSS JOIN LATERAL (SELECT t.attempts + 1 < t.max_attempts AS remain, t.attempts + 1 < t.max_attempts AND NOT t.cancel_requested AS asks OFFSET 0) a
    CROSS JOIN LATERAL
         (SELECT * FROM attempt_end('expired', safe_to_repeat(t.effect_safety, t.reconciles AND a.asks),
                               t.open_steps > 0 OR (t.asking_steps > 0 OR t.reconcile IS NOT NULL) AND NOT a.asks, true, t.cancel_requested,
                               coalesce(t.deadline_at <= clock.now, false), a.remain) OFFSET 0) e
), moved AS (
    UPDATE tasks t SET
        status = d.status,
        hold = CASE WHEN d.status <> 'queued' THEN NULL WHEN d.again_at > clock.now THEN 'due'
                    WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END,
        due_at = CASE WHEN d.status = 'queued' THEN d.again_at ELSE t.due_at END,
        finished_at = CASE WHEN d.status IN ('failed', 'cancelled') THEN clock.now END,
        attempts = t.attempts + d.counts::integer, releases = 0,
        attempt_expired = d.counts,
        -- `told`: what the attempt itself was to find out, for the case that it comes back
        reconcile = CASE WHEN d.status = 'queued' AND t.effect_safety = 'non-idempotent'
                         THEN json_build_object('attemptId', t.attempt_id, 'reason', d.why, 'told', t.reconcile::json)::text ELSE t.reconcile END,
        attempt_ended = d.status IN ('failed', 'cancelled'),
        failure = CASE d.status
            WHEN 'outcome-unknown' THEN json_build_object('code', d.code, 'message', 'the lease ended without a report; the effect may have happened',
                                                          'details', CASE WHEN d.step IS NOT NULL THEN json_build_object('step', d.step) END,
                                                          'attemptId', t.attempt_id)::text
            WHEN 'failed' THEN json_build_object('code', d.code, 'message', format('attempt %%s of %%s ended without a report', t.attempts + 1, t.max_attempts),
                'details', json_build_object('last', json_build_object('code', d.why, 'message', 'the lease ended without a report')),
                'attemptId', t.attempt_id)::text END,
        journal_seq = t.journal_seq + CASE WHEN d.status = 'queued' THEN 1 ELSE 2 END
    FROM decided d, clock WHERE t.id = d.id AND t.id = ANY(ARRAY(SELECT id FROM lapsed))
    RETURNING t.*, d.why, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT m.id, m.journal_seq - (m.status <> 'queued')::integer, m.at, 'lease-expired', m.attempt_id,
           CASE WHEN m.status = 'queued' THEN json_build_object('code', m.why, 'attempts', m.attempts, 'dueAt', rfc3339(m.due_at))
                ELSE json_build_object('code', m.why, 'attempts', m.attempts) END::text
    FROM moved m
), ended AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash)
    SELECT m.id, m.journal_seq, m.at, m.status, m.attempt_id, coalesce(m.failure, '{}'),
           CASE WHEN m.attempt_ended THEN m.attempt_id END, CASE WHEN m.attempt_ended THEN m.token_hash END
    FROM moved m WHERE m.status <> 'queued'
)
SELECT id, project, type, schema_version, pool, status, concurrency_key, due_at, parent_id, cascades, schedule_owner, schedule_name FROM moved
