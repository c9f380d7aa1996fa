-- Makes a new task of a settled one: type, version, input, pool, priority, tags, concurrency and the policy that was submitted;
-- not its key, time, parent or schedule. Locks: the new key, then (keyed tasks) the concurrency key through admit.sql.
-- Called by rerun.rerun: submit.reserve · insert · submit.lock_keys · admit.admit.

-- :: insert
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
source AS MATERIALIZED (
    SELECT t.*, i.task_id AS owner, coalesce(i.hash <> %(hash)s, false) AS differs
    FROM tasks t LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = %(idempotency_key)s
    WHERE t.project = %(project)s AND t.id = %(source)s
), checked AS MATERIALIZED (
    SELECT CASE WHEN s.differs THEN refuse('IDEMPOTENCY_CONFLICT')
                WHEN s.owner IS NOT NULL AND s.owner <> %(id)s THEN true
                WHEN s.finished_at IS NULL THEN refuse(s.status) ELSE true END AS ok
    FROM source s
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace, idempotency_key,
        concurrency_key, concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter,
        lease_seconds, timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope, rerun_of)
    SELECT %(id)s, s.project, s.type, s.schema_version, s.pool, 'queued', CASE WHEN s.concurrency_key IS NOT NULL THEN 'concurrency' END,
           s.priority, coalesce(%(input)s, s.input), s.tags, s.trace, %(idempotency_key)s, s.concurrency_key, s.concurrency_limit,
           s.submitted, p.max_attempts, p.initial_delay_seconds, p.multiplier, p.max_delay_seconds, p.jitter, p.lease_seconds,
           p.timeout_seconds, d.within, clock.now + make_interval(secs => d.within), clock.now, clock.now,
           CASE WHEN %(keep_effect_keys)s THEN s.effect_scope ELSE %(id)s END, s.id
    FROM clock, checked, source s
    CROSS JOIN LATERAL json_to_record(coalesce(s.submitted, '{}')::json) AS p(max_attempts integer, initial_delay_seconds double precision,
        multiplier double precision, max_delay_seconds double precision, jitter double precision, lease_seconds double precision,
        timeout_seconds double precision, start_deadline_seconds double precision)
    CROSS JOIN LATERAL (SELECT least(p.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
        WHERE h.project = s.project AND h.type = s.type AND h.schema_version = s.schema_version)) AS within) d
    WHERE checked.ok AND (s.owner IS NULL OR s.owner = %(id)s)
    RETURNING id
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT made.id, 1, clock.now, 'submitted', json_build_object('rerunOf', %(source)s::text)::text FROM made, clock
)
SELECT coalesce(s.owner, %(id)s) AS task_id, s.owner IS NOT NULL AND s.owner <> %(id)s AS deduplicated, s.concurrency_key, s.type,
       s.schema_version, s.pool, s.status
FROM source s, checked
