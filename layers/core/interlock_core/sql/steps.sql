-- Reading steps, children and signals. No locks. Called by steps.py.

-- :: of_claims
-- The stored steps of claimed tasks, oldest first, as many of each as fit into its share of the answer, and of all as many as fit into
-- theirs: what was picked was measured by its outputs alone. A finished wait for children and the children themselves are steps too.
SELECT * FROM (
    SELECT q.*, sum(q.bytes) OVER (ORDER BY q.task_id, q.seq) AS together FROM (
        SELECT s.*, sum(s.bytes) OVER (PARTITION BY s.task_id ORDER BY s.seq) AS total FROM (
            SELECT s.task_id, s.name, s.kind, s.seq, s.status, s.final, s.effect_safety, s.reconciles, s.tries, s.output, s.error,
                   160 + octet_length(s.name) + coalesce(octet_length(s.output), 0) + coalesce(octet_length(s.error), 0) AS bytes
            FROM unnest(%(ids)s::uuid[]) AS claimed(id) JOIN steps s ON s.task_id = claimed.id) s) q
    WHERE q.total <= %(budget)s) r
WHERE r.together <= %(together)s ORDER BY r.task_id, r.seq

-- :: page
-- What fits into an answer, one at least; `whole`: with outputs. `found`: how many there were before that was looked at.
SELECT * FROM (
    SELECT s.name, s.kind, s.seq, s.status, s.final, s.effect_safety, s.reconciles, s.tries, s.given AS output, s.error,
           sum(100 + coalesce(octet_length(s.given), 0) + coalesce(octet_length(s.error), 0)) OVER (ORDER BY s.seq)
               - coalesce(octet_length(s.given), 0) AS before, count(*) OVER () AS found
    FROM (SELECT *, CASE WHEN %(whole)s THEN output END AS given FROM steps
          WHERE task_id = %(id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s) s) q
WHERE q.before <= %(budget)s ORDER BY q.seq

-- :: children
-- Likewise; `whole`: with results and failures.
SELECT * FROM (
    SELECT s.name, s.seq, s.detached, c.id, c.type, c.schema_version, c.status, w.result, w.failure, c.created_at, c.finished_at,
           sum(200 + coalesce(octet_length(w.result), 0) + coalesce(octet_length(w.failure), 0)) OVER (ORDER BY s.seq)
               - coalesce(octet_length(w.result), 0) - coalesce(octet_length(w.failure), 0) AS before,
           count(*) OVER () AS found
    FROM (SELECT * FROM steps WHERE task_id = %(id)s AND kind = 'child' AND seq > %(after)s ORDER BY seq LIMIT %(limit)s) s
    JOIN tasks c ON c.id = s.child_id
    CROSS JOIN LATERAL (SELECT CASE WHEN %(whole)s THEN c.result END AS result, CASE WHEN %(whole)s THEN c.failure END AS failure) w) q
WHERE q.before <= %(budget)s ORDER BY q.seq

-- :: signals
-- Those that no wait has consumed yet.
SELECT * FROM (
    SELECT g.name, g.signal_key, g.payload, g.at, g.seq,
           sum(100 + octet_length(g.payload)) OVER (ORDER BY g.seq) - octet_length(g.payload) AS before,
           count(*) OVER () AS found
    FROM (SELECT * FROM signals WHERE task_id = %(id)s AND consumed_by IS NULL AND seq > %(after)s ORDER BY seq LIMIT %(limit)s) g) q
WHERE q.before <= %(budget)s ORDER BY q.seq

-- :: seen
SELECT t.id FROM tasks t WHERE t.project = %(project)s AND t.id = %(id)s

-- :: current
-- The task, where this is its current attempt: the lease is the authority to read what did not fit into its claim.
SELECT t.id FROM json_to_record(%(item)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer)
CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id) t
WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
  AND NOT t.attempt_ended AND t.status IN ('running', 'queued', 'outcome-unknown') AND i.epoch = (SELECT epoch FROM service)
  AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
