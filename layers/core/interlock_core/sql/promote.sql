-- Moves work whose moment has come into the claim's index: hold 'due' → ready, or to the gate of its concurrency key.
-- Locks: tasks with SKIP LOCKED. Called by claims.claim (its own handlers) and leases.sweep (every group), bounded.

-- :: groups
WITH RECURSIVE groups AS (
    (SELECT project, type, schema_version, pool FROM tasks WHERE status = 'queued' AND hold = 'due'
     ORDER BY project, type, schema_version, pool LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT t.project, t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.status = 'queued' AND t.hold = 'due' AND (t.project, t.type, t.schema_version, t.pool) > (g.project, g.type, g.schema_version, g.pool)
        ORDER BY t.project, t.type, t.schema_version, t.pool LIMIT 1) n
)
SELECT * FROM groups g
WHERE (SELECT t.due_at FROM tasks t WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version
         AND t.pool = g.pool AND t.status = 'queued' AND t.hold = 'due' ORDER BY t.due_at LIMIT 1) <= (SELECT app_now())
LIMIT 1000

-- :: due
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
g AS MATERIALIZED (SELECT * FROM json_to_recordset(%(groups)s::json) AS g(project text, type text, schema_version integer, pool text)),
due AS MATERIALIZED (  -- about a thousand in all, and some of every group: a backlog of one neither starves nor outlasts a call
    SELECT t.id FROM clock, g CROSS JOIN LATERAL (
        SELECT t.id FROM tasks t
        WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'queued' AND t.hold = 'due' AND t.due_at <= clock.now
        ORDER BY t.due_at LIMIT (SELECT 1 + 1000 / count(*) FROM g) FOR NO KEY UPDATE OF t SKIP LOCKED) t
)
UPDATE tasks t SET hold = CASE WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END
WHERE t.id = ANY(ARRAY(SELECT id FROM due))  -- by id, whatever the planner thinks of their number
RETURNING t.id, t.project, t.type, t.schema_version, t.pool, t.concurrency_key
