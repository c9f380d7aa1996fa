-- Stores tasks: queued, each with its `submitted` event, or answers the task that its idempotency key already names.
-- Locks: idempotency keys by value, then (keyed tasks only) concurrency keys by value through admit.sql.
-- Called by submit.submit and submit.submit_batch; all rows are stored or none.

-- :: reserve
-- A key is free where it is new, or past its window with its task settled; the loser of a race finds the winner below.
INSERT INTO idempotency (project, key, task_id, hash, version, fields, expires_at)
SELECT %(project)s, r.idempotency_key, r.id, decode(r.hash, 'hex'), r.version, r.fields,
       (SELECT app_now()) + make_interval(secs => %(ttl)s)
FROM json_to_recordset(%(rows)s::json) AS r(id uuid, idempotency_key text, hash text, version smallint, fields text)
WHERE r.idempotency_key IS NOT NULL
ORDER BY r.idempotency_key COLLATE "C"
ON CONFLICT (project, key) DO UPDATE
    SET task_id = excluded.task_id, hash = excluded.hash, version = excluded.version, fields = excluded.fields,
        expires_at = excluded.expires_at
    WHERE idempotency.expires_at <= (SELECT app_now())
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = idempotency.task_id AND t.finished_at IS NULL)

-- :: insert
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
r AS MATERIALIZED (
    SELECT r.*, i.task_id AS owner, coalesce(i.hash <> decode(r.hash, 'hex'), false) AS differs
    FROM json_to_recordset(%(rows)s::json) AS r(
        id uuid, type text, schema_version integer, pool text, priority smallint, input text, tags jsonb, trace text,
        idempotency_key text, hash text, run_at timestamptz, delay_seconds double precision,
        concurrency_key text, concurrency_limit integer, max_attempts integer, initial_delay_seconds double precision,
        multiplier double precision, max_delay_seconds double precision, jitter double precision, lease_seconds double precision,
        timeout_seconds double precision, start_deadline_seconds double precision, require_worker text, submitted text)
    LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = r.idempotency_key
), checked AS MATERIALIZED (
    SELECT CASE
        WHEN EXISTS (SELECT FROM r WHERE r.differs) THEN refuse('IDEMPOTENCY_CONFLICT')
        WHEN NOT EXISTS (SELECT FROM projects WHERE name = %(project)s) THEN refuse('NO_PROJECT')
        ELSE true END AS ok
), required AS MATERIALIZED (  -- only what is new is asked for; a repeat is always answered with its task
    SELECT DISTINCT r.type, r.schema_version, r.pool, coalesce(r.require_worker, p.require_worker) AS need
    FROM r, projects p
    WHERE p.name = %(project)s AND (r.owner IS NULL OR r.owner = r.id) AND coalesce(r.require_worker, p.require_worker) IS NOT NULL
), admitted AS MATERIALIZED (
    SELECT bool_and(CASE
        WHEN NOT EXISTS (SELECT FROM task_types y WHERE y.project = %(project)s AND y.type = q.type AND y.schema_version = q.schema_version)
            THEN CASE WHEN q.need = 'registered' THEN refuse('NOT_REGISTERED ' || q.type || '@' || q.schema_version) END
        WHEN q.need = 'online' THEN true
        ELSE true END) AS ok,
        bool_and(CASE WHEN q.need = 'online' AND NOT EXISTS (
            SELECT FROM instances n, clock
            WHERE n.project = %(project)s AND n.ended_at IS NULL AND n.pool = q.pool
              AND n.serves @> ARRAY[q.type || '@' || q.schema_version]
              AND n.last_seen > clock.now - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * n.told_seconds)))
            THEN refuse('NOT_ONLINE ' || q.type || '@' || q.schema_version) ELSE true END) AS online
    FROM required q
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace, idempotency_key,
        concurrency_key, concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter,
        lease_seconds, timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope)
    SELECT r.id, %(project)s, r.type, r.schema_version, r.pool, 'queued',
           CASE WHEN d.due_at > clock.now THEN 'due' WHEN r.concurrency_key IS NOT NULL THEN 'concurrency' END,
           r.priority, r.input, r.tags, r.trace, r.idempotency_key, r.concurrency_key, r.concurrency_limit,
           r.submitted, r.max_attempts, r.initial_delay_seconds, r.multiplier, r.max_delay_seconds, r.jitter,
           r.lease_seconds, r.timeout_seconds, d.within, d.due_at + make_interval(secs => d.within),
           clock.now, d.due_at, r.id
    FROM checked, admitted, clock, r CROSS JOIN LATERAL (  -- OFFSET 0: as in complete.sql
        SELECT coalesce(r.run_at, clock.now + make_interval(secs => coalesce(r.delay_seconds, 0))) AS due_at,
               least(r.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
                   WHERE h.project = %(project)s AND h.type = r.type AND h.schema_version = r.schema_version)) AS within OFFSET 0) d
    WHERE checked.ok AND admitted.ok IS NOT FALSE AND admitted.online IS NOT FALSE AND (r.owner IS NULL OR r.owner = r.id)
    RETURNING id, created_at, due_at, start_deadline_seconds, hold
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind) SELECT made.id, 1, clock.now, 'submitted' FROM made, clock
)
SELECT r.id, coalesce(r.owner, r.id) AS task_id, r.owner IS NOT NULL AND r.owner <> r.id AS deduplicated,
       m.created_at, m.due_at, m.start_deadline_seconds, m.hold,
       EXISTS (SELECT FROM task_types y WHERE y.project = %(project)s AND y.type = r.type) AS registered
FROM checked, admitted, r LEFT JOIN made m ON m.id = r.id

-- :: lock_keys
INSERT INTO concurrency_keys (project, key, locked_by)
SELECT %(project)s, key, %(call)s FROM unnest(%(keys)s::text[]) AS key ORDER BY key COLLATE "C"
ON CONFLICT (project, key) DO UPDATE SET locked_by = excluded.locked_by

-- :: holds
-- Where new keyed tasks stand after their admission.
SELECT id, hold FROM tasks WHERE id = ANY(%(ids)s)

-- :: conflict
SELECT task_id, hash, version, fields, key FROM idempotency WHERE project = %(project)s AND key = ANY(%(keys)s)
