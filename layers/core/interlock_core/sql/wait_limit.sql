-- Fails ready tasks that no online worker serves: queued, due, not key-blocked → failed WORKER_WAIT_LIMIT (outcome-unknown, where
-- a hook was to be asked what an earlier attempt did). The wait is counted
-- from the latest of the due time, a resume, and the last moment that an instance serving the type was online. Paused work
-- waits without limit.
-- Locks: tasks with SKIP LOCKED. Called by leases.sweep, group by group.

-- :: groups
-- One row per group with ready work (a loose index scan), with the last moment that somebody served it.
WITH RECURSIVE groups AS (
    (SELECT project, type, schema_version, pool FROM tasks WHERE status = 'queued' AND hold IS NULL
     ORDER BY project, type, schema_version, pool LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT t.project, t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.status = 'queued' AND t.hold IS NULL AND (t.project, t.type, t.schema_version, t.pool) > (g.project, g.type, g.schema_version, g.pool)
        ORDER BY t.project, t.type, t.schema_version, t.pool LIMIT 1) n
)
SELECT g.*, s.seen FROM groups g CROSS JOIN LATERAL (
    SELECT greatest(
        (SELECT max(coalesce(i.ended_at, i.last_seen)) FROM instances i
         WHERE i.project = g.project AND i.pool = g.pool AND i.serves @> ARRAY[g.type || '@' || g.schema_version]),
        (SELECT y.resumed_at FROM pauses y WHERE y.project = g.project AND y.type = g.type AND y.schema_version = g.schema_version),
        (SELECT p.resumed_at FROM projects p WHERE p.name = g.project)) AS seen) s
WHERE coalesce(s.seen, '-infinity') < (SELECT app_now()) - make_interval(secs => %(limit_seconds)s)
  AND NOT EXISTS (SELECT FROM pauses y WHERE y.project = g.project AND y.type = g.type AND y.schema_version = g.schema_version
                    AND y.paused_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM projects p WHERE p.name = g.project AND p.paused_at IS NOT NULL)

-- :: settle
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
g AS MATERIALIZED (SELECT * FROM json_to_recordset(%(groups)s::json) AS g(project text, type text, schema_version integer, pool text)),
late AS MATERIALIZED (
    SELECT t.* FROM clock, g CROSS JOIN LATERAL (
        SELECT t.id, t.attempt_id IS NOT NULL AND NOT t.attempt_ended AS ends FROM tasks t
        WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'queued' AND t.hold IS NULL AND t.due_at <= clock.now - make_interval(secs => %(limit_seconds)s)
        ORDER BY t.priority DESC, t.due_at, t.id  -- the order of the index to be walked
        LIMIT (SELECT 1 + 1000 / count(*) FROM g) FOR NO KEY UPDATE OF t SKIP LOCKED) t
), moved AS (
    UPDATE tasks t SET status = CASE WHEN t.reconcile IS NOT NULL OR t.open_steps + t.asking_steps > 0 THEN 'outcome-unknown' ELSE 'failed' END,
        finished_at = CASE WHEN t.reconcile IS NOT NULL OR t.open_steps + t.asking_steps > 0 THEN NULL ELSE clock.now END,
        journal_seq = t.journal_seq + 1, attempt_ended = true,
        failure = json_build_object('code', 'WORKER_WAIT_LIMIT',
            'message', format('no online worker served %%s@%%s in pool %%s for %%s seconds', t.type, t.schema_version, t.pool, %(limit_seconds)s::double precision),
            'details', CASE WHEN t.open_steps + t.asking_steps > 0 THEN json_build_object('step', open_step(t.id)) END)::text
    FROM clock, late l WHERE t.id = l.id AND t.id = ANY(ARRAY(SELECT id FROM late))
    RETURNING t.*, l.ends, clock.now AS at
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data, ended_attempt, token_hash)
    -- an attempt that had ended keeps its own event: a repeat of its report is known by that
    SELECT id, journal_seq, at, status, failure, CASE WHEN ends THEN attempt_id END, CASE WHEN ends THEN token_hash END FROM moved
)
SELECT id, project, status, concurrency_key, parent_id, cascades, schedule_owner, schedule_name FROM moved
