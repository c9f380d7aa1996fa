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
    SELECT k.key, (SELECT count(*) FROM tasks t WHERE t.project = k.project AND t.concurrency_key = k.key AND t.status = 'running') AS held
    FROM concurrency_keys k WHERE k.project = %(project)s AND k.key = ANY(%(keys)s) AND k.locked_by = %(call)s
), groups AS (  -- a loose index scan: one step per group, however many tasks it has
    SELECT k.key, g.type, g.schema_version, g.pool FROM keys k CROSS JOIN LATERAL (
        SELECT t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = k.key AND t.status = 'queued' AND t.hold = 'concurrency'
        ORDER BY t.type, t.schema_version, t.pool LIMIT 1) g
    UNION ALL
    SELECT r.key, g.type, g.schema_version, g.pool FROM groups r CROSS JOIN LATERAL (
        SELECT t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = r.key AND t.status = 'queued' AND t.hold = 'concurrency'
          AND (t.type, t.schema_version, t.pool) > (r.type, r.schema_version, r.pool)
        ORDER BY t.type, t.schema_version, t.pool LIMIT 1) g
), blocked AS MATERIALIZED (
    SELECT b.* FROM groups g JOIN keys k ON k.key = g.key CROSS JOIN LATERAL (
        SELECT t.id, t.concurrency_key, t.concurrency_limit, t.type, t.schema_version, t.pool, t.priority, t.due_at, t.hold FROM tasks t
        WHERE t.project = %(project)s AND t.concurrency_key = g.key AND t.status = 'queued' AND t.hold = 'concurrency'
          AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool AND t.concurrency_limit > k.held
        ORDER BY t.priority DESC, t.due_at, t.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED) b
), ready AS MATERIALIZED (
    SELECT t.id, t.concurrency_key, t.concurrency_limit, t.type, t.schema_version, t.pool, t.priority, t.due_at, t.hold
    FROM tasks t JOIN keys k ON t.concurrency_key = k.key
    WHERE t.project = %(project)s AND t.status = 'queued' AND t.hold IS NULL AND t.concurrency_key IS NOT NULL
    FOR NO KEY UPDATE OF t SKIP LOCKED
), ranked AS (
    SELECT c.*, row_number() OVER (PARTITION BY concurrency_key, type, schema_version, pool ORDER BY priority DESC, due_at, id) AS place
    FROM (SELECT * FROM blocked UNION ALL SELECT * FROM ready) c
), moved AS (
    UPDATE tasks t SET hold = CASE WHEN r.place <= r.concurrency_limit - k.held THEN NULL ELSE 'concurrency' END
    FROM ranked r JOIN keys k ON k.key = r.concurrency_key
    WHERE t.id = r.id AND (r.hold IS NULL) <> (r.place <= r.concurrency_limit - k.held)
    RETURNING t.type, t.schema_version, t.pool, t.hold
)
SELECT type, schema_version, pool, count(*) AS tasks FROM moved WHERE hold IS NULL GROUP BY 1, 2, 3

-- :: stranded
-- Keys with blocked tasks and room (the repair of the sweep: a crash between the end of an attempt and its admission).
WITH RECURSIVE keys AS (
    (SELECT project, concurrency_key AS key FROM tasks WHERE status = 'queued' AND hold = 'concurrency'
     ORDER BY project, concurrency_key LIMIT 1)
    UNION ALL
    SELECT n.project, n.key FROM keys k CROSS JOIN LATERAL (
        SELECT t.project, t.concurrency_key AS key FROM tasks t WHERE t.status = 'queued' AND t.hold = 'concurrency'
          AND (t.project, t.concurrency_key) > (k.project, k.key)
        ORDER BY t.project, t.concurrency_key LIMIT 1) n
)
SELECT k.project, k.key FROM keys k
WHERE (SELECT count(*) FROM tasks t WHERE t.project = k.project AND t.concurrency_key = k.key AND t.status = 'running')
      < (SELECT t.concurrency_limit FROM tasks t WHERE t.project = k.project AND t.concurrency_key = k.key
           AND t.status = 'queued' AND t.hold = 'concurrency' ORDER BY t.concurrency_limit DESC LIMIT 1)
LIMIT 1000
