-- What people and programs ask of the whole: workers, task types, the health of the service. No locks.
-- Finished rows are never scanned: outcomes come from roll_ups, live work from the partial indexes, in loose scans where only the
-- distinct types are wanted (one index step per type, however many tasks it has).
-- Called by overview.workers, overview.task_types, overview.doctor, overview.metrics.

-- :: worker_ids
SELECT u.worker_id FROM (
    (SELECT worker_id FROM worker_ids
     WHERE project = %(project)s AND worker_id > coalesce(%(after)s::text, '')
       AND (%(only)s::text[] IS NULL OR worker_id = ANY(%(only)s))
     ORDER BY worker_id LIMIT %(limit)s)
    UNION
    (SELECT DISTINCT worker_id FROM instances
     WHERE project = %(project)s AND ended_at IS NULL AND worker_id > coalesce(%(after)s::text, '')
       AND (%(only)s::text[] IS NULL OR worker_id = ANY(%(only)s))
     ORDER BY worker_id LIMIT %(limit)s)
) u ORDER BY u.worker_id LIMIT %(limit)s

-- :: registrations
SELECT * FROM worker_ids WHERE project = %(project)s AND worker_id = ANY(%(ids)s)

-- :: handlers_of
SELECT h.worker_id, h.type, h.schema_version, h.effect_safety, h.reconciles, h.slots, h.pool FROM handlers h
WHERE h.project = %(project)s AND h.worker_id = ANY(%(ids)s) ORDER BY h.worker_id, h.type, h.schema_version

-- :: instances_of
-- The state of each process in one word, with how many of its slots are used; the latest seen of each worker id first.
SELECT s.*,
       CASE WHEN NOT s.online THEN 'offline' WHEN s.draining OR s.drain_requested THEN 'draining'
            WHEN s.used >= s.slots THEN 'full' ELSE 'ready' END AS state
FROM (
    SELECT i.worker_id, i.instance_id, i.pool, i.slots, i.draining, i.drain_requested, i.host, i.build, i.sdk, i.registered, i.started_at,
           i.last_seen, i.serves,
           i.last_seen > (SELECT app_now()) - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds)) AS online,
           (SELECT count(*) FROM tasks t WHERE t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
              AND t.status = 'running' AND t.worker_id = i.worker_id)::integer AS used
    FROM instances i
    WHERE i.project = %(project)s AND i.worker_id = ANY(%(ids)s) AND i.ended_at IS NULL
) s ORDER BY s.worker_id, s.online DESC, s.last_seen DESC, s.instance_id

-- :: running_of
SELECT t.id, t.type, t.schema_version, t.attempt_id, t.attempts, t.instance_id, t.attempt_started_at, t.lease_expires_at, t.cancel_requested
FROM instances i JOIN tasks t ON t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
    AND t.status = 'running' AND t.worker_id = i.worker_id
WHERE i.project = %(project)s AND i.worker_id = %(worker_id)s
ORDER BY t.attempt_started_at, t.id LIMIT 200

-- :: type_names
WITH RECURSIVE ready AS (
    (SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold IS NULL
       AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT 1)
    UNION ALL
    SELECT n.* FROM ready r CROSS JOIN LATERAL (
        SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold IS NULL
          AND (type, schema_version) > (r.type, r.schema_version) ORDER BY type, schema_version LIMIT 1) n
), delayed AS (
    (SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'due'
       AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT 1)
    UNION ALL
    SELECT n.* FROM delayed r CROSS JOIN LATERAL (
        SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'due'
          AND (type, schema_version) > (r.type, r.schema_version) ORDER BY type, schema_version LIMIT 1) n
), running AS (
    (SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'running'
       AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT 1)
    UNION ALL
    SELECT n.* FROM running r CROSS JOIN LATERAL (
        SELECT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'running'
          AND (type, schema_version) > (r.type, r.schema_version) ORDER BY type, schema_version LIMIT 1) n
), finished AS (
    (SELECT type, schema_version FROM roll_ups WHERE project = %(project)s
       AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT 1)
    UNION ALL
    SELECT n.* FROM finished r CROSS JOIN LATERAL (
        SELECT type, schema_version FROM roll_ups WHERE project = %(project)s
          AND (type, schema_version) > (r.type, r.schema_version) ORDER BY type, schema_version LIMIT 1) n
)
SELECT u.type, u.schema_version FROM (
    (SELECT * FROM ready LIMIT %(limit)s)
    UNION (SELECT * FROM delayed LIMIT %(limit)s)
    UNION (SELECT * FROM running LIMIT %(limit)s)
    UNION (SELECT * FROM finished LIMIT %(limit)s)
    UNION (SELECT type, schema_version FROM task_types WHERE project = %(project)s
             AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT %(limit)s)
    UNION (SELECT type, schema_version FROM pauses WHERE project = %(project)s AND paused_at IS NOT NULL
             AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT %(limit)s)
    UNION (SELECT DISTINCT type, schema_version FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'concurrency'
             AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT %(limit)s)
    UNION (SELECT DISTINCT type, schema_version FROM tasks WHERE project = %(project)s AND status IN ('outcome-unknown', 'waiting')
             AND (type, schema_version) > (%(after_type)s, %(after_version)s) ORDER BY type, schema_version LIMIT %(limit)s)
) u ORDER BY u.type, u.schema_version LIMIT %(limit)s

-- :: type_facts
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
names AS MATERIALIZED (SELECT * FROM json_to_recordset(%(names)s::json) AS n(type text, schema_version integer)),
blocked AS MATERIALIZED (  -- this index starts with the key, so one pass serves all types
    SELECT t.type, t.schema_version, count(*) AS tasks, min(t.gated) AS oldest FROM (
        SELECT type, schema_version, due_at AS gated FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'concurrency'
        UNION ALL  -- what waits for an earlier task of its schedule is not late
        SELECT type, schema_version, NULL FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'previous') t GROUP BY 1, 2
), attention AS MATERIALIZED (
    SELECT t.type, t.schema_version, count(*) FILTER (WHERE t.status = 'waiting') AS waiting,
           count(*) FILTER (WHERE t.status = 'outcome-unknown') AS unknown FROM tasks t
    WHERE t.project = %(project)s AND t.status IN ('waiting', 'outcome-unknown') GROUP BY 1, 2
)
SELECT n.type, n.schema_version, y.first_registered_at,
       ready.tasks AS ready, delayed.tasks AS delayed, coalesce(b.tasks, 0) AS blocked, running.tasks AS running,
       coalesce(a.waiting, 0) AS waiting, coalesce(a.unknown, 0) AS unknown,
       extract(epoch FROM clock.now - least(ready.oldest, b.oldest, late.oldest))::double precision AS oldest_due_age,
       past.*
FROM clock, names n
LEFT JOIN task_types y ON y.project = %(project)s AND y.type = n.type AND y.schema_version = n.schema_version
LEFT JOIN blocked b ON b.type = n.type AND b.schema_version = n.schema_version
LEFT JOIN attention a ON a.type = n.type AND a.schema_version = n.schema_version
CROSS JOIN LATERAL (SELECT count(*) AS tasks, min(t.due_at) AS oldest FROM tasks t WHERE t.project = %(project)s AND t.type = n.type
    AND t.schema_version = n.schema_version AND t.status = 'queued' AND t.hold IS NULL) ready
CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM tasks t WHERE t.project = %(project)s AND t.type = n.type
    AND t.schema_version = n.schema_version AND t.status = 'queued' AND t.hold = 'due') delayed
CROSS JOIN LATERAL (SELECT min(t.due_at) AS oldest FROM tasks t WHERE t.project = %(project)s AND t.type = n.type
    AND t.schema_version = n.schema_version AND t.status = 'queued' AND t.hold = 'due' AND t.due_at <= clock.now) late
CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM tasks t WHERE t.project = %(project)s AND t.type = n.type
    AND t.schema_version = n.schema_version AND t.status = 'running') running
CROSS JOIN LATERAL (
    SELECT coalesce(sum(r.succeeded) FILTER (WHERE r.minute > clock.now - interval '1 hour'), 0) AS hour_succeeded,
           coalesce(sum(r.failed) FILTER (WHERE r.minute > clock.now - interval '1 hour'), 0) AS hour_failed,
           coalesce(sum(r.cancelled) FILTER (WHERE r.minute > clock.now - interval '1 hour'), 0) AS hour_cancelled,
           coalesce(sum(r.succeeded), 0) AS day_succeeded, coalesce(sum(r.failed), 0) AS day_failed,
           coalesce(sum(r.cancelled), 0) AS day_cancelled,
           -- the minutes' percentiles, weighted by their outcomes: near enough to show, and nothing finished is read for it
           sum(r.wait_p50 * r.weight) / nullif(sum(r.weight) FILTER (WHERE r.wait_p50 IS NOT NULL), 0) AS wait_p50,
           sum(r.wait_p95 * r.weight) / nullif(sum(r.weight) FILTER (WHERE r.wait_p95 IS NOT NULL), 0) AS wait_p95,
           sum(r.run_p50 * r.weight) / nullif(sum(r.weight) FILTER (WHERE r.run_p50 IS NOT NULL), 0) AS run_p50,
           sum(r.run_p95 * r.weight) / nullif(sum(r.weight) FILTER (WHERE r.run_p95 IS NOT NULL), 0) AS run_p95
    FROM (SELECT u.*, CASE WHEN u.minute > clock.now - interval '1 hour' THEN u.succeeded + u.failed + u.cancelled ELSE 0 END AS weight
          FROM roll_ups u WHERE u.project = %(project)s AND u.type = n.type AND u.schema_version = n.schema_version
            AND u.minute > clock.now - interval '1 day') r
) past
ORDER BY n.type, n.schema_version

-- :: handlers_for
-- `budget`: so many bytes of what programs declare are read, of the first ones; what is left out is said to be.
SELECT h.type, h.schema_version, h.worker_id, h.pool, h.effect_safety, h.reconciles, h.slots, h.max_attempts, h.initial_delay_seconds,
       h.multiplier, h.max_delay_seconds, h.jitter, h.timeout_seconds, h.lease_seconds, h.start_deadline_seconds,
       CASE WHEN h.fits THEN h.description END AS description, CASE WHEN h.fits THEN h.input_schema END AS input_schema,
       CASE WHEN h.fits THEN h.result_schema END AS result_schema, NOT h.fits AND h.bytes > 0 AS left_out
FROM (SELECT s.*, sum(s.bytes) OVER (ORDER BY s.type, s.schema_version, s.worker_id) <= %(budget)s AS fits
      FROM (SELECT h.*, coalesce(octet_length(h.description), 0) + coalesce(octet_length(h.input_schema), 0)
                        + coalesce(octet_length(h.result_schema), 0) AS bytes
            FROM handlers h JOIN json_to_recordset(%(names)s::json) AS n(type text, schema_version integer)
                ON h.project = %(project)s AND h.type = n.type AND h.schema_version = n.schema_version
            ORDER BY h.type, h.schema_version, h.worker_id LIMIT 2000) s) h
ORDER BY h.type, h.schema_version, h.worker_id

-- :: queues
-- Ready and waiting work by type and pool, for a worker's own view of its queues.
SELECT t.type, t.schema_version, t.pool, count(*) AS queued,
       extract(epoch FROM (SELECT app_now()) - min(t.due_at))::double precision AS oldest_due_age
FROM json_to_recordset(%(names)s::json) AS n(type text, schema_version integer)
JOIN tasks t ON t.project = %(project)s AND t.type = n.type AND t.schema_version = n.schema_version
WHERE t.status = 'queued' AND (t.hold IS NULL OR t.hold = 'concurrency') AND (%(pools)s::text[] IS NULL OR t.pool = ANY(%(pools)s))
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT 500

-- :: vitals
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
due AS MATERIALIZED (
    SELECT count(*) AS tasks, min(t.due_at) AS oldest FROM (
        SELECT due_at FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold IS NULL
        UNION ALL
        SELECT due_at FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'concurrency'
        UNION ALL
        SELECT NULL FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold = 'previous') t
), transactions AS MATERIALIZED (
    SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 1
)
SELECT clock.now, %(project)s::text AS project, s.epoch, s.swept_at, s.retained_at, (SELECT max(name) FROM migrations) AS schema_version,
       due.tasks AS queue_depth, extract(epoch FROM clock.now - due.oldest)::double precision AS oldest_due_age,
       (SELECT count(DISTINCT i.worker_id) FROM instances i WHERE i.project = %(project)s AND i.ended_at IS NULL
          AND i.last_seen > clock.now - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds))) AS online_workers,
       (SELECT count(*) FROM tasks t WHERE t.project = %(project)s AND t.status = 'running' AND t.lease_expires_at < clock.now) AS expired_leases,
       (SELECT count(*) FROM tasks t WHERE t.project = %(project)s AND t.status = 'outcome-unknown') AS unknown,
       -- ends that the parent has not looked at, for longer than what follows an end takes
       (SELECT count(*) FROM (SELECT FROM tasks t WHERE t.project = %(project)s AND t.parent_id IS NOT NULL AND t.finished_at IS NOT NULL
          AND NOT t.parent_told AND t.finished_at < clock.now - interval '5 seconds' LIMIT 10000) ended) AS untold,
       (SELECT count(*) FROM (SELECT FROM tasks t WHERE t.finished_at < clock.now - make_interval(secs => %(keep_seconds)s)
          AND t.project = %(project)s ORDER BY t.finished_at LIMIT 10000) old) AS retention_backlog,
       x.pid AS transaction_pid, x.application_name AS transaction_application, x.state AS transaction_state, x.seconds AS transaction_seconds
FROM clock CROSS JOIN service s CROSS JOIN due LEFT JOIN transactions x ON true

-- :: outbox
-- Work that is due for longer than a poll while a slot for it is free: somebody should have it by now. Keyed tasks are left out,
-- since the moment that their key let them in is not kept; so is what is paused, and what was until a poll ago.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
free AS MATERIALIZED (
    SELECT split_part(v.serves, '@', 1) AS type, split_part(v.serves, '@', 2)::integer AS schema_version, i.pool, max(i.told_seconds) AS poll
    FROM clock, instances i CROSS JOIN LATERAL unnest(i.serves) AS v(serves)
    WHERE i.project = %(project)s AND i.ended_at IS NULL AND NOT i.draining AND NOT i.drain_requested
      AND i.last_seen > clock.now - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds))
      AND i.slots > (SELECT count(*) FROM tasks t WHERE t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
                       AND t.status = 'running' AND t.worker_id = i.worker_id)
    GROUP BY 1, 2, 3
)
SELECT count(*) AS tasks, extract(epoch FROM max(clock.now - q.due_at))::double precision AS oldest
FROM clock, (
    SELECT f.* FROM clock, free f
    WHERE NOT EXISTS (SELECT FROM pauses y WHERE y.project = %(project)s AND y.type = f.type AND y.schema_version = f.schema_version
                        AND (y.paused_at IS NOT NULL OR y.resumed_at > clock.now - make_interval(secs => greatest(f.poll, 1))))
      AND NOT EXISTS (SELECT FROM projects p WHERE p.name = %(project)s
                        AND (p.paused_at IS NOT NULL OR p.resumed_at > clock.now - make_interval(secs => greatest(f.poll, 1))))
) f CROSS JOIN LATERAL (
    SELECT t.due_at FROM tasks t
    WHERE t.project = %(project)s AND t.type = f.type AND t.schema_version = f.schema_version AND t.pool = f.pool
      AND t.status = 'queued' AND t.hold IS NULL AND t.concurrency_key IS NULL
      AND t.due_at < clock.now - make_interval(secs => greatest(f.poll, 1)) LIMIT 1000) q

-- :: ready
SELECT epoch FROM service
