-- Schedules: putting, reading, pausing, triggering. Whatever decides when is computed by schedules.py from what it read, and taken
-- only if the schedule still stands there (its revision); otherwise the call reads again.
-- Locks: schedules by owner and name; a trigger its idempotency key first (submit.reserve), then the schedule.
-- Called by schedules.put, registered (in the transaction of a worker's registration), find, find_all, pause, resume, trigger, remove.

-- :: find
SELECT s.*, (SELECT app_now()) AS now, l.due_at AS last_due_at, l.at AS last_at, l.outcome AS last_outcome, l.task_id AS last_task_id,
       l.missed AS last_missed
FROM unnest(%(names)s::text[]) AS n(name)
-- one by its key at a time, whatever the statistics say
CROSS JOIN LATERAL (SELECT * FROM schedules WHERE project = %(project)s AND owner = %(owner)s AND name = n.name LIMIT 1) s
LEFT JOIN LATERAL (SELECT * FROM firings f WHERE f.project = s.project AND f.owner = s.owner AND f.name = s.name
                     AND f.due_at > s.created_at  -- not of one of this name that is gone
                   ORDER BY f.due_at DESC LIMIT 1) l ON true

-- :: clock
SELECT app_now() AS now

-- :: page
SELECT s.*, (SELECT app_now()) AS now, l.due_at AS last_due_at, l.at AS last_at, l.outcome AS last_outcome, l.task_id AS last_task_id,
       l.missed AS last_missed
FROM (SELECT * FROM schedules s
      WHERE s.project = %(project)s AND (s.owner, s.name) > (%(after_owner)s, %(after_name)s)
        AND (%(only)s::text IS NULL OR s.owner = %(only)s)
      ORDER BY s.owner, s.name LIMIT %(limit)s) s
LEFT JOIN LATERAL (SELECT * FROM firings f WHERE f.project = s.project AND f.owner = s.owner AND f.name = s.name
                     AND f.due_at > s.created_at  -- not of one of this name that is gone
                   ORDER BY f.due_at DESC LIMIT 1) l ON true
ORDER BY s.owner, s.name

-- :: broken
SELECT owner, name, error, error_at FROM schedules WHERE project = %(project)s AND error IS NOT NULL ORDER BY error_at LIMIT 100

-- :: store
-- New ones come in with revision 1. One whose rule stays keeps its place in time, whatever was fired meanwhile. One whose rule
-- changes must not have anything due: that is fired first, as it was.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(schedules)s::json) AS g(owner text, name text, cron text, time_zone text, every_seconds double precision,
        anchor_at timestamptz, next_due_at timestamptz, overlap text, catch_up text, type text, schema_version integer,
        input text, options text, given text, hash text, revision integer)
), stored AS (
    INSERT INTO schedules (project, owner, name, cron, time_zone, every_seconds, anchor_at, next_due_at, overlap, catch_up, type, schema_version,
        input, options, given, hash, revision, key_id, created_at, updated_at)
    SELECT %(project)s, g.owner, g.name, g.cron, g.time_zone, g.every_seconds, g.anchor_at, g.next_due_at, g.overlap, g.catch_up, g.type,
           g.schema_version, g.input, g.options, g.given, decode(g.hash, 'hex'), g.revision, %(key_id)s, clock.now, clock.now
    FROM given g, clock ORDER BY g.owner, g.name
    ON CONFLICT (project, owner, name) DO UPDATE
        SET cron = excluded.cron, time_zone = excluded.time_zone, every_seconds = excluded.every_seconds,
            anchor_at = CASE WHEN schedules.error IS NULL AND same_rule(schedules, excluded) THEN schedules.anchor_at ELSE excluded.anchor_at END,
            next_due_at = CASE WHEN schedules.error IS NULL AND same_rule(schedules, excluded) THEN schedules.next_due_at ELSE excluded.next_due_at END,
            overlap = excluded.overlap, catch_up = excluded.catch_up, type = excluded.type,
            schema_version = excluded.schema_version, input = excluded.input, options = excluded.options, given = excluded.given,
            hash = excluded.hash, revision = excluded.revision, key_id = excluded.key_id, updated_at = excluded.updated_at,
            error = NULL, error_at = NULL
        WHERE schedules.revision = excluded.revision - 1
          AND (schedules.paused_at IS NOT NULL OR schedules.error IS NOT NULL OR schedules.next_due_at IS NULL
               -- by the time after the wait for the row
               OR same_rule(schedules, excluded) OR schedules.next_due_at > app_now())
    RETURNING owner, name
)
-- all of them, or nothing of the transaction: somebody changed or fired one since it was read
SELECT CASE WHEN (SELECT count(*) FROM stored) < (SELECT count(*) FROM given) THEN refuse('SCHEDULES_CHANGED') END

-- :: keep_only
DELETE FROM schedules WHERE project = %(project)s AND owner = %(owner)s AND name <> ALL(%(names)s::text[])

-- :: note
INSERT INTO audit (id, project, at, key_id, action, target, detail)
VALUES (%(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, %(action)s, %(name)s, json_build_object('owner', nullif(%(owner)s::text, ''))::text)

-- :: pause
WITH found AS MATERIALIZED (
    SELECT s.paused_at FROM schedules s WHERE s.project = %(project)s AND s.owner = %(owner)s AND s.name = %(name)s FOR NO KEY UPDATE
), changed AS (
    UPDATE schedules s SET paused_at = (SELECT app_now()), revision = s.revision + 1, updated_at = (SELECT app_now()), key_id = %(key_id)s
    FROM found f WHERE s.project = %(project)s AND s.owner = %(owner)s AND s.name = %(name)s AND f.paused_at IS NULL
    RETURNING s.name
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'schedule-paused', c.name,
           json_build_object('owner', nullif(%(owner)s::text, ''))::text FROM changed c
)
SELECT EXISTS (SELECT FROM changed) AS changed FROM found

-- :: resume
-- What was due during the pause is not caught up: the next instant is given.
WITH changed AS (
    UPDATE schedules s SET paused_at = NULL, next_due_at = %(next_due_at)s, revision = s.revision + 1, updated_at = (SELECT app_now()),
        key_id = %(key_id)s, error = %(error)s, error_at = CASE WHEN %(error)s::text IS NOT NULL THEN (SELECT app_now()) END
    WHERE s.project = %(project)s AND s.owner = %(owner)s AND s.name = %(name)s AND s.revision = %(revision)s AND s.paused_at IS NOT NULL
    RETURNING s.name
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'schedule-resumed', c.name,
           json_build_object('owner', nullif(%(owner)s::text, ''))::text FROM changed c
)
SELECT name FROM changed

-- :: remove
WITH gone AS (
    DELETE FROM schedules WHERE project = %(project)s AND owner = %(owner)s AND name = %(name)s RETURNING name
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'schedule-removed', g.name,
           json_build_object('owner', nullif(%(owner)s::text, ''))::text FROM gone g
)
SELECT EXISTS (SELECT FROM gone) AS changed

-- :: lock
SELECT s.name FROM schedules s WHERE s.project = %(project)s AND s.owner = %(owner)s AND s.name = %(name)s FOR NO KEY UPDATE

-- :: trigger
-- A task at once, whatever the time and the pause. Unless the schedule allows overlap it waits for those before it.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
source AS MATERIALIZED (
    SELECT s.*, i.task_id AS named, coalesce(i.hash <> %(hash)s, false) AS differs
    FROM schedules s LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = %(idempotency_key)s
    WHERE s.project = %(project)s AND s.owner = %(owner)s AND s.name = %(name)s
), checked AS MATERIALIZED (
    SELECT CASE WHEN s.differs THEN refuse('IDEMPOTENCY_CONFLICT') ELSE true END AS ok FROM source s
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace, idempotency_key,
        concurrency_key, concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter,
        lease_seconds, timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope, schedule_owner,
        schedule_name)
    SELECT %(id)s, s.project, s.type, s.schema_version, o.pool, 'queued',
           CASE WHEN s.overlap <> 'allow' AND EXISTS (
                    SELECT FROM tasks t WHERE t.project = s.project AND t.schedule_name = s.name AND coalesce(t.schedule_owner, '') = s.owner
                      AND t.finished_at IS NULL) THEN 'previous'
                WHEN o.concurrency_key IS NOT NULL THEN 'concurrency' END,
           o.priority, s.input, o.tags, o.trace, %(idempotency_key)s, o.concurrency_key, o.concurrency_limit, o.submitted, o.max_attempts,
           o.initial_delay_seconds, o.multiplier, o.max_delay_seconds, o.jitter, o.lease_seconds, o.timeout_seconds, d.within,
           clock.now + make_interval(secs => d.within), clock.now, clock.now, %(id)s, nullif(s.owner, ''), s.name
    FROM clock, checked, source s
    CROSS JOIN LATERAL json_to_record(s.options::json) AS o(pool text, priority smallint, tags jsonb, trace text, concurrency_key text,
        concurrency_limit integer, submitted text, max_attempts integer, initial_delay_seconds double precision, multiplier double precision,
        max_delay_seconds double precision, jitter double precision, lease_seconds double precision, timeout_seconds double precision,
        start_deadline_seconds double precision)
    CROSS JOIN LATERAL (SELECT least(o.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
        WHERE h.project = s.project AND h.type = s.type AND h.schema_version = s.schema_version)) AS within) d
    WHERE checked.ok AND (s.named IS NULL OR s.named = %(id)s)
    RETURNING id, type, schema_version, pool, hold, concurrency_key
), journalled AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT m.id, 1, clock.now, 'submitted', json_build_object('scheduleOwner', nullif(%(owner)s::text, ''), 'scheduleName', %(name)s::text,
               'triggered', true)::text FROM made m, clock
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, clock.now, %(key_id)s, 'schedule-triggered', %(name)s,
           json_build_object('owner', nullif(%(owner)s::text, ''), 'taskId', m.id)::text FROM made m, clock
)
SELECT coalesce(s.named, %(id)s) AS task_id, m.id, m.type, m.schema_version, m.pool, m.hold, m.concurrency_key, s.owner, s.name
FROM checked, source s LEFT JOIN made m ON true
UNION ALL
-- The schedule is not there. A repeat is answered all the same; for anything else nothing is kept, and the key names nothing.
SELECT i.task_id, NULL, NULL, NULL, NULL, NULL, NULL, %(owner)s, %(name)s
FROM (SELECT) one LEFT JOIN idempotency i ON i.project = %(project)s AND i.key = %(idempotency_key)s AND i.task_id <> %(id)s
WHERE NOT EXISTS (SELECT FROM source)
  AND CASE WHEN i.task_id IS NULL THEN refuse('NOT_FOUND') WHEN i.hash <> %(hash)s THEN refuse('IDEMPOTENCY_CONFLICT') ELSE true END
