-- Submits a child with its parent's lease as authority, once per name.
-- Locks: the parent, then (keyed children) the concurrency key through admit.sql. Called by children.spawn:
-- complete.lock_one · revive · spawn.

-- :: spawn
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
item AS MATERIALIZED (
    SELECT * FROM json_to_record(%(item)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer,
        name text, detached boolean, id uuid, type text, schema_version integer, pool text, priority smallint, input text, tags jsonb,
        trace text, run_at timestamptz, delay_seconds double precision, concurrency_key text, concurrency_limit integer,
        max_attempts integer, initial_delay_seconds double precision, multiplier double precision, max_delay_seconds double precision,
        jitter double precision, lease_seconds double precision, timeout_seconds double precision, start_deadline_seconds double precision,
        submitted text)
), mine AS MATERIALIZED (
    SELECT i.*, s.child_id,
           CASE WHEN s.kind <> 'child' THEN 'other-kind' WHEN s.name IS NOT NULL THEN 'kept'
                WHEN t.steps_stored >= %(most_steps)s THEN 'too-many' ELSE 'stored' END AS verdict
    FROM item i CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE) t
    LEFT JOIN steps s ON s.task_id = t.id AND s.name = i.name
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status = 'running' AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
), counted AS (
    UPDATE tasks t SET journal_seq = t.journal_seq + 1, attempt_reported = true, releases = 0, steps_stored = t.steps_stored + 1,
        cascades = t.cascades OR NOT m.detached
    FROM mine m WHERE t.id = m.task_id AND m.verdict = 'stored'
    RETURNING t.id, t.journal_seq
), heard AS (
    UPDATE tasks t SET attempt_reported = true FROM mine m WHERE t.id = m.task_id AND m.verdict <> 'stored' AND NOT t.attempt_reported
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace,
        concurrency_key, concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter,
        lease_seconds, timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope, parent_id)
    SELECT m.id, %(project)s, m.type, m.schema_version, m.pool, 'queued',
           CASE WHEN d.due_at > clock.now THEN 'due' WHEN m.concurrency_key IS NOT NULL THEN 'concurrency' END,
           m.priority, m.input, m.tags, m.trace, m.concurrency_key, m.concurrency_limit, m.submitted, m.max_attempts,
           m.initial_delay_seconds, m.multiplier, m.max_delay_seconds, m.jitter, m.lease_seconds, m.timeout_seconds, d.within,
           d.due_at + make_interval(secs => d.within), clock.now, d.due_at, m.id, m.task_id
    FROM clock, mine m CROSS JOIN LATERAL (
        SELECT coalesce(m.run_at, clock.now + make_interval(secs => coalesce(m.delay_seconds, 0))) AS due_at,
               least(m.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
                   WHERE h.project = %(project)s AND h.type = m.type AND h.schema_version = m.schema_version)) AS within) d
    WHERE m.verdict = 'stored'
    RETURNING id, due_at
), named AS (
    INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, output, attempt_id, child_id, detached)
    SELECT m.task_id, m.name, 'child', c.journal_seq, c.journal_seq, 'succeeded', true, json_build_object('taskId', m.id)::text, m.attempt_id, m.id, m.detached
    FROM mine m JOIN counted c ON c.id = m.task_id
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT m.task_id, c.journal_seq, clock.now, 'step', m.attempt_id,
           json_build_object('name', m.name, 'child', m.id, 'type', m.type, 'schemaVersion', m.schema_version, 'detached', m.detached)::text
    FROM clock, mine m JOIN counted c ON c.id = m.task_id
    UNION ALL
    SELECT m.id, 1, clock.now, 'submitted', NULL, json_build_object('parentId', m.task_id, 'name', m.name)::text
    FROM clock, mine m JOIN counted c ON c.id = m.task_id
)
SELECT m.verdict, coalesce(m.child_id, m.id) AS child_id, d.due_at FROM mine m LEFT JOIN made d ON d.id = m.id
