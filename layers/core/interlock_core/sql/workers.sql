-- Registration of a worker program, and the end of one of its processes.
-- Locks: the worker id's row (two registrations of one worker id come one after another), its handlers, the instance's row;
-- queued tasks with SKIP LOCKED, in a transaction of their own. A claim locks neither of the first two, so it never waits here.
-- Called by workers.register: enrol · clear · handlers · types · supersede · instance, then start_deadlines until none is left; and by workers.remove.

-- :: enrol
-- A build is compared only with another build: one that is not named neither wins nor loses.
INSERT INTO worker_ids (project, worker_id, pool, slots, build, sdk, host, instance_id, registered_at)
VALUES (%(project)s, %(worker_id)s, %(pool)s, %(slots)s, %(build)s, %(sdk)s, %(host)s, %(instance_id)s, app_now())
ON CONFLICT (project, worker_id) DO UPDATE
    SET pool = excluded.pool, slots = excluded.slots, build = excluded.build, sdk = excluded.sdk, host = excluded.host,
        instance_id = excluded.instance_id, registered_at = excluded.registered_at
    WHERE CASE WHEN %(replace)s::boolean THEN true
               WHEN worker_ids.build > excluded.build THEN refuse('NEWER_BUILD ' || worker_ids.build)
               ELSE true END
RETURNING registered_at

-- :: clear
DELETE FROM handlers WHERE project = %(project)s AND worker_id = %(worker_id)s

-- :: handlers
INSERT INTO handlers (project, worker_id, pool, type, schema_version, effect_safety, reconciles, slots, description, input_schema,
    result_schema, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter, timeout_seconds, lease_seconds,
    start_deadline_seconds)
SELECT %(project)s, %(worker_id)s, %(pool)s, h.type, h.schema_version, h.effect_safety, h.reconciles, h.slots, h.description,
       h.input_schema, h.result_schema, h.max_attempts, h.initial_delay_seconds, h.multiplier, h.max_delay_seconds, h.jitter,
       h.timeout_seconds, h.lease_seconds, h.start_deadline_seconds
FROM json_to_recordset(%(handlers)s::json) AS h(
    type text, schema_version integer, effect_safety text, reconciles boolean, slots integer, description text, input_schema text,
    result_schema text, max_attempts integer, initial_delay_seconds double precision, multiplier double precision,
    max_delay_seconds double precision, jitter double precision, timeout_seconds double precision, lease_seconds double precision,
    start_deadline_seconds double precision)

-- :: types
INSERT INTO task_types (project, type, schema_version, first_registered_at)
SELECT %(project)s, h.type, h.schema_version, (SELECT app_now())
FROM json_to_recordset(%(handlers)s::json) AS h(type text, schema_version integer)
ORDER BY h.type COLLATE "C", h.schema_version
ON CONFLICT DO NOTHING

-- :: instance
INSERT INTO instances (project, worker_id, instance_id, pool, slots, serves, host, build, sdk, registered, started_at, last_seen)
VALUES (%(project)s, %(worker_id)s, %(instance_id)s, %(pool)s, %(slots)s, %(serves)s, %(host)s, %(build)s, %(sdk)s, true, app_now(), app_now())
ON CONFLICT (project, worker_id, instance_id) DO UPDATE
    SET pool = excluded.pool, slots = excluded.slots, serves = excluded.serves, host = excluded.host, build = excluded.build,
        sdk = excluded.sdk, registered = true, last_seen = excluded.last_seen, ended_at = NULL,
        -- after its end a registration is another process by the same name: nobody asked that one to drain
        started_at = CASE WHEN instances.ended_at IS NULL THEN instances.started_at ELSE excluded.started_at END,
        drain_requested = instances.drain_requested AND instances.ended_at IS NULL,
        draining = instances.draining AND instances.ended_at IS NULL
RETURNING last_seen AS now

-- :: supersede
-- Processes of this worker id that are gone, but for the latest twenty: one that crashes in a loop leaves thousands a day. Those that
-- served what this one does not, or that tasks still name as their holder, stay until the sweep forgets them.
WITH gone AS (
    SELECT i.ctid FROM instances i
    WHERE i.project = %(project)s AND i.worker_id = %(worker_id)s AND i.instance_id <> %(instance_id)s AND i.serves <@ %(serves)s
      AND (i.ended_at IS NOT NULL
           OR i.last_seen < (SELECT app_now()) - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds)))
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
                        AND t.status = 'running' AND t.worker_id = i.worker_id)
    ORDER BY i.last_seen DESC OFFSET 20 LIMIT 500 FOR UPDATE SKIP LOCKED
)
DELETE FROM instances i USING gone WHERE i.ctid = gone.ctid

-- :: start_deadlines
-- A smaller start deadline reaches back to tasks that wait already; a submit reads the handlers for itself. Bounded: what is
-- locked is being claimed, and so starts in time.
WITH h AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(handlers)s::json) AS h(type text, schema_version integer, start_deadline_seconds double precision)
), looser AS MATERIALIZED (
    SELECT q.id, h.start_deadline_seconds FROM h CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT t.id FROM tasks t
            WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.status = 'queued'
              AND t.hold IS NULL AND t.started_at IS NULL
              AND (t.start_deadline_seconds IS NULL OR t.start_deadline_seconds > h.start_deadline_seconds)
            LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) ready
        UNION ALL
        SELECT * FROM (
            SELECT t.id FROM tasks t
            WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.status = 'queued'
              AND t.hold = 'due' AND t.started_at IS NULL
              AND (t.start_deadline_seconds IS NULL OR t.start_deadline_seconds > h.start_deadline_seconds)
            LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) delayed
        UNION ALL
        SELECT * FROM (
            SELECT t.id FROM tasks t
            WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.status = 'queued'
              AND t.hold = 'concurrency' AND t.started_at IS NULL
              AND (t.start_deadline_seconds IS NULL OR t.start_deadline_seconds > h.start_deadline_seconds)
            LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) blocked
        UNION ALL
        SELECT * FROM (
            SELECT t.id FROM tasks t
            WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.status = 'queued'
              AND t.hold = 'previous' AND t.started_at IS NULL
              AND (t.start_deadline_seconds IS NULL OR t.start_deadline_seconds > h.start_deadline_seconds)
            LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) behind) q
)
UPDATE tasks t SET start_deadline_seconds = l.start_deadline_seconds,
    start_deadline_at = t.due_at + make_interval(secs => l.start_deadline_seconds)
FROM looser l WHERE t.id = l.id AND t.id = ANY(ARRAY(SELECT id FROM looser))
RETURNING t.id

-- :: remove
-- The row stays until the sweep forgets it: it says when somebody last served its types.
WITH found AS MATERIALIZED (
    SELECT ended_at FROM instances
    WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s FOR UPDATE
), ended AS (
    UPDATE instances SET ended_at = (SELECT app_now()) FROM found
    WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s AND found.ended_at IS NULL
)
SELECT found.ended_at IS NOT NULL AS before FROM found

-- :: drain
WITH known AS MATERIALIZED (
    SELECT i.* FROM instances i WHERE i.project = %(project)s AND i.worker_id = %(worker_id)s ORDER BY i.instance_id FOR UPDATE
), changed AS (
    UPDATE instances i SET drain_requested = true FROM known k
    WHERE i.project = k.project AND i.worker_id = k.worker_id AND i.instance_id = k.instance_id AND k.ended_at IS NULL AND NOT k.drain_requested
    RETURNING i.instance_id
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'worker-drained', %(worker_id)s WHERE EXISTS (SELECT FROM changed)
)
SELECT k.instance_id, k.ended_at IS NULL AS alive, c.instance_id IS NOT NULL AS changed
FROM known k LEFT JOIN changed c ON c.instance_id = k.instance_id
UNION ALL  -- a registration is there, whether or not a process of it is remembered
SELECT NULL, false, false FROM worker_ids w WHERE w.project = %(project)s AND w.worker_id = %(worker_id)s

-- :: unregister
WITH gone AS (
    DELETE FROM worker_ids WHERE project = %(project)s AND worker_id = %(worker_id)s RETURNING 1
), handlers_gone AS (
    DELETE FROM handlers WHERE project = %(project)s AND worker_id = %(worker_id)s
), schedules_gone AS (
    DELETE FROM schedules WHERE project = %(project)s AND owner = %(worker_id)s
), ended AS (
    DELETE FROM instances WHERE project = %(project)s AND worker_id = %(worker_id)s AND ended_at IS NOT NULL RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'worker-removed', %(worker_id)s WHERE EXISTS (SELECT FROM gone)
)
SELECT EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM ended) AS changed
