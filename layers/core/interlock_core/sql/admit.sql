-- Lets the best key-blocked tasks in, and puts those out that no longer fit.
-- Of each group (type, version, pool) of a key, as many tasks are ready as the key has room for: a claim never wades through
-- a backlog, and no group can starve another by waiting for a worker that never comes. The claim itself counts the holders,
-- so that a task more or less in here never breaks a limit.
-- Locks: the key rows by value, then tasks with SKIP LOCKED (it never waits for a task while it holds a key).
-- Called by whatever frees a key, makes a keyed task due, or finds a free key with blocked tasks (sweep).

-- :: lock
WITH chosen AS MATERIALIZED (
    SELECT project, key FROM concurrency_keys
    WHERE project = %(project)s AND key = ANY(%(keys)s)
    ORDER BY key FOR NO KEY UPDATE
)
UPDATE concurrency_keys k SET locked_by = %(call)s
FROM chosen c WHERE k.project = c.project AND k.key = c.key

-- :: admit
WITH RECURSIVE keys AS MATERIALIZED (
    SELECT k.key, k.most, (SELECT count(*) FROM tasks t WHERE t.project = k.project AND t.concurrency_key = k.key AND t.status = 'running') AS held
    FROM concurrency_keys k WHERE k.project = %(project)s AND k.key = ANY(%(keys)s) AND k.locked_by = %(call)s
), groups AS (  -- a loose index scan: one step per group and limit, however many tasks it has
    SELECT k.key, k.held, k.most, g.type, g.schema_version, g.pool, g.concurrency_limit FROM keys k CROSS JOIN LATERAL (
        SELECT t.type, t.schema_version, t.pool, t.concurrency_limit FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = k.key AND t.status = 'queued' AND t.hold = 'concurrency'
        ORDER BY t.type, t.schema_version, t.pool, t.concurrency_limit LIMIT 1) g
    UNION ALL
    SELECT r.key, r.held, r.most, g.type, g.schema_version, g.pool, g.concurrency_limit FROM groups r CROSS JOIN LATERAL (
        SELECT t.type, t.schema_version, t.pool, t.concurrency_limit FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = r.key AND t.status = 'queued' AND t.hold = 'concurrency'
          AND (t.type, t.schema_version, t.pool, t.concurrency_limit) > (r.type, r.schema_version, r.pool, r.concurrency_limit)
        ORDER BY t.type, t.schema_version, t.pool, t.concurrency_limit LIMIT 1) g
), candidates AS MATERIALIZED (
    -- of each limit no more than fit under it; those whose limit is reached are not looked at, be they thousands
    SELECT b.*, g.held, g.most FROM groups g CROSS JOIN LATERAL (
        SELECT t.id, t.concurrency_key, t.concurrency_limit, t.type, t.schema_version, t.pool, t.priority, t.due_at, t.hold FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = g.key AND t.status = 'queued' AND t.hold = 'concurrency'
          AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool AND t.concurrency_limit = g.concurrency_limit
        ORDER BY t.priority DESC, t.due_at, t.id LIMIT least(greatest(least(g.concurrency_limit, g.most) - g.held, 0), 100)) b
    WHERE least(g.concurrency_limit, g.most) > g.held
    UNION ALL
    SELECT t.id, t.concurrency_key, t.concurrency_limit, t.type, t.schema_version, t.pool, t.priority, t.due_at, t.hold, k.held, k.most
    FROM tasks t JOIN keys k ON t.concurrency_key = k.key
    WHERE t.project = %(project)s AND t.status = 'queued' AND t.hold IS NULL AND t.concurrency_key IS NOT NULL
), ranked AS (
    SELECT c.id, c.hold, least(c.concurrency_limit, c.most) - c.held
        >= row_number() OVER (PARTITION BY c.concurrency_key, c.type, c.schema_version, c.pool ORDER BY c.priority DESC, c.due_at, c.id) AS fits
    FROM candidates c
), locked AS MATERIALIZED (  -- only what moves is locked; a row that changed meanwhile is left to whoever changed it
    SELECT t.id FROM ranked r CROSS JOIN LATERAL (
        SELECT id FROM tasks WHERE id = r.id AND status = 'queued' AND hold IS NOT DISTINCT FROM r.hold FOR NO KEY UPDATE SKIP LOCKED) t
    WHERE (r.hold IS NULL) <> r.fits
), moved AS (
    UPDATE tasks t SET hold = CASE WHEN t.hold IS NULL THEN 'concurrency' END
    WHERE t.id = ANY(ARRAY(SELECT id FROM locked))  -- by id, whatever the planner thinks of the number of keys
    RETURNING t.type, t.schema_version, t.pool, t.hold
)
SELECT type, schema_version, pool, count(*) AS tasks FROM moved WHERE hold IS NULL GROUP BY 1, 2, 3

-- :: stranded
-- Keys with blocked tasks and room (the repair of the sweep: a crash between the end of an attempt and its admission). A group
-- that has as many ready tasks as fit is not stranded: it waits for a worker.
WITH RECURSIVE groups AS (
    (SELECT project, concurrency_key AS key, type, schema_version, pool, concurrency_limit FROM tasks
     WHERE status = 'queued' AND hold = 'concurrency'
     ORDER BY project, concurrency_key, type, schema_version, pool, concurrency_limit LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT t.project, t.concurrency_key AS key, t.type, t.schema_version, t.pool, t.concurrency_limit FROM tasks t
        WHERE t.status = 'queued' AND t.hold = 'concurrency'
          AND (t.project, t.concurrency_key, t.type, t.schema_version, t.pool, t.concurrency_limit)
              > (g.project, g.key, g.type, g.schema_version, g.pool, g.concurrency_limit)
        ORDER BY t.project, t.concurrency_key, t.type, t.schema_version, t.pool, t.concurrency_limit LIMIT 1) n
)
SELECT DISTINCT g.project, g.key FROM groups g
WHERE (SELECT count(*) FROM tasks t WHERE t.project = g.project AND t.concurrency_key = g.key AND t.status = 'running')
      + (SELECT count(*) FROM tasks t WHERE t.project = g.project AND t.concurrency_key = g.key AND t.status = 'queued'
           AND t.hold IS NULL AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool)
      < least(g.concurrency_limit, (SELECT k.most FROM concurrency_keys k WHERE k.project = g.project AND k.key = g.key))
UNION  -- or with ready tasks that no longer fit: a claim died before it could put them out. Holders are few; ready work may be much.
SELECT r.project, r.key
FROM (SELECT h.project, h.concurrency_key AS key, count(*) AS held
      FROM (SELECT t.project, t.concurrency_key FROM tasks t WHERE t.status = 'running' AND t.concurrency_key IS NOT NULL LIMIT 20000) h
      GROUP BY 1, 2) r
CROSS JOIN LATERAL (
    SELECT FROM tasks t WHERE t.project = r.project AND t.concurrency_key = r.key AND t.status = 'queued' AND t.hold IS NULL
      AND r.held >= least(t.concurrency_limit, (SELECT k.most FROM concurrency_keys k WHERE k.project = r.project AND k.key = r.key))
    LIMIT 1) stuck
LIMIT 1000
