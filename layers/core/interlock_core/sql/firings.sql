-- Fires what is due: one task per (owner, schedule, due instant), inserted with the advance of the schedule's next instant in one
-- transaction. When that is, is decided before (instants.py knows the calendars); here it is taken only if the schedule still
-- stands where it was read: revision and next instant unchanged, not paused. So any number may try, with any clocks.
-- Locks: schedules by owner and name with SKIP LOCKED, then (keyed tasks only) concurrency keys by value through admit.sql.
-- Called by firings.fire_due and stay: due · (lock · fire · submit.lock_keys · admit.admit) per project · mark · done (· ahead).

-- :: due
-- Schedules whose instant has come; and of those in error, some that nobody looked at for a minute.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
found AS (
    (SELECT * FROM schedules s WHERE s.paused_at IS NULL AND s.error IS NULL AND s.next_due_at <= (SELECT now FROM clock)
     ORDER BY s.next_due_at LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM schedules s WHERE s.error IS NOT NULL AND s.paused_at IS NULL
       AND s.error_at < (SELECT now FROM clock) - interval '1 minute'
     ORDER BY s.error_at LIMIT 100)
)
SELECT f.project, f.owner, f.name, f.revision, f.cron, f.time_zone, f.every_seconds, f.anchor_at, f.next_due_at, f.overlap, f.catch_up,
       f.error, f.options, clock.now, (SELECT ticked_at FROM service) AS ticked_at
FROM found f, clock ORDER BY f.project, f.owner, f.name

-- :: due_of
-- The same for some schedules of one owner, which are about to change.
SELECT s.project, s.owner, s.name, s.revision, s.cron, s.time_zone, s.every_seconds, s.anchor_at, s.next_due_at, s.overlap, s.catch_up,
       s.error, s.options, clock.now, (SELECT ticked_at FROM service) AS ticked_at
FROM (SELECT app_now() AS now) clock, unnest(%(names)s::text[]) AS n(name)
CROSS JOIN LATERAL (SELECT * FROM schedules WHERE project = %(project)s AND owner = %(owner)s AND name = n.name LIMIT 1) s
WHERE s.paused_at IS NULL AND s.error IS NULL AND s.next_due_at <= clock.now ORDER BY s.name

-- :: lock
SELECT l.name FROM json_to_recordset(%(plans)s::json) AS p(owner text, name text) CROSS JOIN LATERAL (
    SELECT s.name FROM schedules s WHERE s.project = %(project)s AND s.owner = p.owner AND s.name = p.name FOR NO KEY UPDATE SKIP LOCKED) l

-- :: fire
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
mine AS MATERIALIZED (
    SELECT s.*, p.then_due_at, p.passed
    FROM json_to_recordset(%(plans)s::json) AS p(owner text, name text, revision integer, was timestamptz, then_due_at timestamptz, passed bigint)
    CROSS JOIN LATERAL (
        SELECT * FROM schedules WHERE project = %(project)s AND owner = p.owner AND name = p.name FOR NO KEY UPDATE SKIP LOCKED) s
    WHERE s.revision = p.revision AND s.next_due_at IS NOT DISTINCT FROM p.was AND s.paused_at IS NULL
), judged AS MATERIALIZED (
    SELECT m.owner, m.name, i.due_at, i.id, i.missed, u.earlier,
           CASE WHEN i.outcome = 'missed' THEN i.outcome
                WHEN m.overlap = 'skip' AND u.earlier THEN 'skipped'
                WHEN o.require_worker IS NOT NULL AND NOT EXISTS (
                    SELECT FROM task_types y WHERE y.project = m.project AND y.type = m.type AND y.schema_version = m.schema_version) THEN 'refused'
                WHEN o.require_worker = 'online' AND NOT EXISTS (
                    SELECT FROM instances n WHERE n.project = m.project AND n.ended_at IS NULL AND n.pool = o.pool
                      AND n.serves @> ARRAY[m.type || '@' || m.schema_version]
                      AND n.last_seen > clock.now - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * n.told_seconds))) THEN 'refused'
                ELSE i.outcome END AS outcome
    FROM clock, mine m
    JOIN json_to_recordset(%(instants)s::json) AS i(owner text, name text, due_at timestamptz, id uuid, outcome text, missed integer)
      ON i.owner = m.owner AND i.name = m.name
    CROSS JOIN LATERAL json_to_record(m.options::json) AS o(pool text, require_worker text)
    CROSS JOIN LATERAL (SELECT m.overlap <> 'allow' AND EXISTS (
        SELECT FROM tasks t WHERE t.project = m.project AND t.schedule_name = m.name AND coalesce(t.schedule_owner, '') = m.owner
          AND t.finished_at IS NULL) AS earlier) u
), taken AS (
    INSERT INTO firings (project, owner, name, due_at, at, outcome, task_id, missed)
    SELECT %(project)s, j.owner, j.name, j.due_at, clock.now, j.outcome, CASE j.outcome WHEN 'fired' THEN j.id END, j.missed
    FROM judged j, clock ORDER BY j.owner, j.name, j.due_at
    ON CONFLICT DO NOTHING
    RETURNING owner, name, due_at, outcome, task_id, missed
), moved AS (
    UPDATE schedules s SET next_due_at = m.then_due_at, error = NULL, error_at = NULL, missed = s.missed + m.passed,
        fired = s.fired + (SELECT count(*) FROM taken k WHERE k.owner = m.owner AND k.name = m.name AND k.outcome = 'fired'),
        skipped = s.skipped + (SELECT count(*) FROM taken k WHERE k.owner = m.owner AND k.name = m.name AND k.outcome = 'skipped')
    FROM mine m WHERE s.project = %(project)s AND s.owner = m.owner AND s.name = m.name
    RETURNING s.name
), made AS (
    INSERT INTO tasks (id, project, type, schema_version, pool, status, hold, priority, input, tags, trace, concurrency_key,
        concurrency_limit, submitted, max_attempts, initial_delay_seconds, multiplier, max_delay_seconds, jitter, lease_seconds,
        timeout_seconds, start_deadline_seconds, start_deadline_at, created_at, due_at, effect_scope, schedule_owner, schedule_name)
    SELECT k.task_id, m.project, m.type, m.schema_version, o.pool, 'queued',
           CASE WHEN j.earlier THEN 'previous' WHEN k.due_at > clock.now THEN 'due' WHEN o.concurrency_key IS NOT NULL THEN 'concurrency' END,
           o.priority, m.input, o.tags, o.trace, o.concurrency_key, o.concurrency_limit, o.submitted, o.max_attempts,
           o.initial_delay_seconds, o.multiplier, o.max_delay_seconds, o.jitter, o.lease_seconds, o.timeout_seconds, d.within,
           k.due_at + make_interval(secs => d.within), clock.now, k.due_at, k.task_id, nullif(m.owner, ''), m.name
    FROM clock, taken k
    JOIN mine m ON m.owner = k.owner AND m.name = k.name
    JOIN judged j ON j.id = k.task_id
    CROSS JOIN LATERAL json_to_record(m.options::json) AS o(pool text, priority smallint, tags jsonb, trace text, concurrency_key text,
        concurrency_limit integer, submitted text, max_attempts integer, initial_delay_seconds double precision, multiplier double precision,
        max_delay_seconds double precision, jitter double precision, lease_seconds double precision, timeout_seconds double precision,
        start_deadline_seconds double precision)
    CROSS JOIN LATERAL (SELECT least(o.start_deadline_seconds, (SELECT min(h.start_deadline_seconds) FROM handlers h
        WHERE h.project = m.project AND h.type = m.type AND h.schema_version = m.schema_version)) AS within) d
    RETURNING id, type, schema_version, pool, hold, concurrency_key, schedule_owner, schedule_name, due_at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT t.id, 1, clock.now, 'submitted', json_build_object('scheduleOwner', t.schedule_owner, 'scheduleName', t.schedule_name,
               'dueAt', rfc3339(t.due_at), 'missed', k.missed)::text
    FROM made t JOIN taken k ON k.task_id = t.id, clock
)
SELECT k.owner, k.name, k.due_at, k.outcome, t.id, t.type, t.schema_version, t.pool, t.hold, t.concurrency_key
FROM taken k LEFT JOIN made t ON t.id = k.task_id
UNION ALL  -- one that only moved on says that there was something to do
SELECT m.owner, m.name, NULL, 'moved', NULL, NULL, NULL, NULL, NULL, NULL FROM mine m

-- :: mark
-- Schedules that cannot be computed: set aside, so that they stop no other.
UPDATE schedules s SET error = b.error, error_at = app_now()
FROM json_to_recordset(%(broken)s::json) AS b(project text, owner text, name text, revision integer, error text)
WHERE s.project = b.project AND s.owner = b.owner AND s.name = b.name AND s.revision = b.revision

-- :: zones
-- The zones in use, each once (a loose index scan): one that this machine no longer knows is noticed before anything is due.
WITH RECURSIVE zones AS (
    (SELECT time_zone FROM schedules WHERE error IS NULL AND time_zone IS NOT NULL ORDER BY time_zone LIMIT 1)
    UNION ALL
    SELECT n.time_zone FROM zones z CROSS JOIN LATERAL (
        SELECT s.time_zone FROM schedules s WHERE s.error IS NULL AND s.time_zone IS NOT NULL AND s.time_zone > z.time_zone
        ORDER BY s.time_zone LIMIT 1) n
)
SELECT time_zone FROM zones

-- :: without_zone
UPDATE schedules SET error = %(error)s, error_at = app_now() WHERE error IS NULL AND time_zone = %(time_zone)s RETURNING name

-- :: done
UPDATE service SET ticked_at = app_now()
WHERE ticked_at IS NULL OR ticked_at < app_now() - interval '1 second' OR ticked_at > app_now()

-- :: ahead
-- In how many seconds the next schedule is due (NULL: none ever, below zero: one is), for a sweep that stays for it.
SELECT extract(epoch FROM min(next_due_at) - (SELECT app_now()))::double precision AS due_in
FROM schedules WHERE paused_at IS NULL AND error IS NULL

-- :: forget
WITH old AS MATERIALIZED (
    SELECT ctid FROM firings WHERE at < (SELECT app_now()) - make_interval(secs => %(keep_seconds)s) ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM firings f WHERE f.ctid = ANY(ARRAY(SELECT ctid FROM old)) RETURNING 1
