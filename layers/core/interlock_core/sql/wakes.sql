-- What the stream asks of the truth: what is claimable and when something will be, whose key is gone, who is to stop.
-- No locks. Called by the stream through wakes.py, for all connected groups in one statement.

-- :: outlook
-- Of each group: how much could be claimed now (counted to `most`), and in how many seconds more may be. A lapsed lease
-- counts: the claim that meets it settles it. `leases`: whether to look at them (ready work is looked at more often).
WITH clock AS MATERIALIZED (SELECT app_now() AS now)
SELECT g.n, CASE WHEN stopped.yes THEN 0 ELSE ready.count + due.count + woken.count END + lease.lapsed AS claimable, lease.lapsed > 0 AS lapsed,
       extract(epoch FROM least(
           (SELECT t.due_at FROM tasks t
            WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
              AND t.status = 'queued' AND t.hold = 'due' AND t.due_at > clock.now ORDER BY t.due_at LIMIT 1),
           (SELECT t.wake_at FROM tasks t
            WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
              AND t.status = 'waiting' AND t.wake_at > clock.now ORDER BY t.wake_at LIMIT 1)) - clock.now)::double precision AS due_in,
       extract(epoch FROM lease.next_at - clock.now)::double precision AS lease_in
FROM clock CROSS JOIN json_to_recordset(%(groups)s::json)
     AS g(n integer, project text, type text, schema_version integer, pool text, most integer, leases boolean)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM tasks t WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'queued' AND t.hold IS NULL LIMIT g.most) counted) ready
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM tasks t WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'queued' AND t.hold = 'due' AND t.due_at <= clock.now LIMIT g.most) counted) due
CROSS JOIN LATERAL (  -- the claim that meets a wait whose time is over ends it
    SELECT count(*) FROM (
        SELECT FROM tasks t WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
          AND t.status = 'waiting' AND t.wake_at <= clock.now LIMIT g.most) counted) woken
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE t.lease_expires_at <= clock.now) AS lapsed,
           min(t.lease_expires_at) FILTER (WHERE t.lease_expires_at > clock.now) AS next_at
    FROM tasks t WHERE g.leases AND t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
      AND t.status = 'running') lease
CROSS JOIN LATERAL (  -- paused work wakes nobody
    SELECT EXISTS (SELECT FROM pauses y WHERE y.project = g.project AND y.type = g.type AND y.schema_version = g.schema_version
                     AND y.paused_at IS NOT NULL)
        OR EXISTS (SELECT FROM projects p WHERE p.name = g.project AND p.paused_at IS NOT NULL) AS yes) stopped

-- :: full
-- Of these instances, those that are known to take nothing now. One that never claimed is not known.
SELECT i.project, i.worker_id, i.instance_id
FROM json_to_recordset(%(instances)s::json) AS g(project text, worker_id text, instance_id text)
JOIN instances i ON i.project = g.project AND i.worker_id = g.worker_id AND i.instance_id = g.instance_id
WHERE i.draining OR i.drain_requested OR i.slots <= (
    SELECT count(*) FROM tasks t WHERE t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
      AND t.status = 'running' AND t.worker_id = i.worker_id)

-- :: cancels
-- Attempts whose holder is to stop, where the hints that said so were lost or did not fit.
SELECT t.project, t.worker_id, t.instance_id, t.id, t.attempt_id FROM tasks t
WHERE t.project = ANY(%(projects)s) AND t.status = 'running' AND t.cancel_requested LIMIT 10000

-- :: gone
-- Of these keys, those that are revoked or past their end.
SELECT k.id, k.revoked_at IS NOT NULL AS revoked FROM keys k
WHERE k.id = ANY(%(ids)s) AND (k.revoked_at IS NOT NULL OR k.expires_at <= (SELECT app_now()))
