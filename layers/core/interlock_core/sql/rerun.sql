-- Makes a new task of a settled one: type, version, input, pool, priority, tags, concurrency and the policy that was submitted;
-- not its key, time, parent, schedule or signals. From a step: with the outcomes that were stored before
-- that step's first event.
-- Locks: the new key, the source (shared), then (keyed tasks) the concurrency key through admit.sql.
-- Called by rerun.rerun: submit.reserve · insert · submit.lock_keys · admit.admit.

-- :: insert
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
source AS MATERIALIZED (
    SELECT t.*, i.task_id AS owner, coalesce(i.hash <> %(hash)s, false) AS differs
    -- retention, which would let go of the children that are kept, waits for nobody
    FROM (SELECT * FROM tasks WHERE id = %(source)s FOR KEY SHARE) t LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = %(idempotency_key)s
    WHERE t.project = %(project)s AND t.id = %(source)s
), checked AS MATERIALIZED (
    SELECT CASE WHEN s.differs THEN refuse('IDEMPOTENCY_CONFLICT')
                WHEN s.owner IS NOT NULL AND s.owner <> %(id)s THEN true
                WHEN s.finished_at IS NULL THEN refuse(s.status)
                WHEN %(from_step)s::text IS NOT NULL AND f.seq IS NULL THEN refuse('NO_STEP')
                WHEN u.name IS NOT NULL THEN refuse('UNSETTLED_CHILD ' || u.name) ELSE true END AS ok, f.seq AS from_seq
    FROM source s
    LEFT JOIN steps f ON f.task_id = s.id AND f.name = %(from_step)s
    LEFT JOIN LATERAL (
        SELECT k.name FROM steps k JOIN tasks c ON c.id = k.child_id
        WHERE k.task_id = s.id AND k.kind = 'child' AND k.outcome_seq < f.seq AND c.finished_at IS NULL ORDER BY k.seq LIMIT 1) u ON true
), kept AS MATERIALIZED (
    SELECT k.*, row_number() OVER (ORDER BY k.outcome_seq)::integer AS n
    FROM source s, checked, steps k WHERE k.task_id = s.id AND k.outcome_seq < checked.from_seq
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace, idempotency_key,
        concurrency_key, concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter,
        lease_seconds, timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope, rerun_of,
        journal_seq, steps_stored, steps_bytes, cascades)
    SELECT %(id)s, s.project, s.type, s.schema_version, s.pool, 'queued', CASE WHEN s.concurrency_key IS NOT NULL THEN 'concurrency' END,
           s.priority, coalesce(%(input)s, s.input), s.tags, s.trace, %(idempotency_key)s, s.concurrency_key, s.concurrency_limit,
           s.submitted, p.max_attempts, p.initial_delay_seconds, p.multiplier, p.max_delay_seconds, p.jitter, p.lease_seconds,
           p.timeout_seconds, d.within, clock.now + make_interval(secs => d.within), clock.now, clock.now,
           CASE WHEN %(keep_effect_keys)s THEN s.effect_scope ELSE %(id)s END, s.id,
           1 + k.steps, k.steps, k.bytes, false
    FROM clock, checked, source s
    CROSS JOIN LATERAL json_to_record(coalesce(s.submitted, '{}')::json) AS p(max_attempts integer, initial_delay_seconds double precision,
        multiplier double precision, max_delay_seconds double precision, jitter double precision, lease_seconds double precision,
        timeout_seconds double precision, start_deadline_seconds double precision)
    CROSS JOIN LATERAL (SELECT least(p.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
        WHERE h.project = s.project AND h.type = s.type AND h.schema_version = s.schema_version)) AS within) d
    CROSS JOIN (SELECT count(*)::integer AS steps, coalesce(sum(octet_length(output)), 0) AS bytes FROM kept) k
    WHERE checked.ok AND (s.owner IS NULL OR s.owner = %(id)s)
    RETURNING id
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT made.id, 1, clock.now, 'submitted', json_build_object('rerunOf', %(source)s::text, 'fromStep', %(from_step)s::text)::text FROM made, clock
    UNION ALL
    SELECT made.id, 1 + k.n, clock.now, 'step', json_build_object('name', k.name, 'status', k.status, 'final', true, 'kept', true)::text
    FROM made, clock, kept k
), copied AS (
    INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, effect_safety, reconciles, tries, output, error, child_id, detached)
    SELECT made.id, k.name, k.kind, 1 + k.n, 1 + k.n, k.status, true, k.effect_safety, k.reconciles, k.tries, k.output, k.error, k.child_id, k.detached
    FROM made, kept k
)
SELECT coalesce(s.owner, %(id)s) AS task_id, s.owner IS NOT NULL AND s.owner <> %(id)s AS deduplicated, s.concurrency_key, s.type,
       s.schema_version, s.pool
FROM source s, checked
UNION ALL
-- The source is not there. A repeat is answered all the same; for anything else nothing is kept, and the key names nothing.
SELECT i.task_id, true, NULL, NULL, NULL, NULL
FROM (SELECT) one LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = %(idempotency_key)s AND i.task_id <> %(id)s
WHERE NOT EXISTS (SELECT FROM source)
  AND CASE WHEN i.task_id IS NULL THEN refuse('NOT_FOUND') WHEN i.hash <> %(hash)s THEN refuse('IDEMPOTENCY_CONFLICT') ELSE true END
