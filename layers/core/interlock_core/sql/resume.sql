-- Ends waits: waiting → queued, with what ended the wait stored as the step of its name. What is waited for (a signal, the
-- children's ends) is read after the task's lock, in a later statement: no wake-up is lost, whichever commits first.
-- Locks: tasks by ascending id. Called by whatever may end a wait: a suspension itself, a signal, the end of a child
-- (ends.follow), time (waits.wake: claims and the sweep).

-- :: lock
SELECT t.id FROM tasks t WHERE t.id = ANY(%(ids)s) ORDER BY t.id FOR NO KEY UPDATE

-- :: lock_free
-- As `lock`, for whoever comes back: what somebody holds is left to the next look.
SELECT t.id FROM tasks t WHERE t.id = ANY(%(ids)s) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED

-- :: groups
-- Where a time limit has passed, one row per group (a loose index scan).
WITH RECURSIVE groups AS (
    (SELECT project, type, schema_version, pool FROM tasks WHERE status = 'waiting' AND wake_at IS NOT NULL
     ORDER BY project, type, schema_version, pool LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT t.project, t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.status = 'waiting' AND t.wake_at IS NOT NULL
          AND (t.project, t.type, t.schema_version, t.pool) > (g.project, g.type, g.schema_version, g.pool)
        ORDER BY t.project, t.type, t.schema_version, t.pool LIMIT 1) n
)
SELECT * FROM groups g
WHERE (SELECT t.wake_at FROM tasks t WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version
         AND t.pool = g.pool AND t.status = 'waiting' AND t.wake_at IS NOT NULL ORDER BY t.wake_at LIMIT 1) <= (SELECT app_now())

-- :: due
SELECT t.id FROM json_to_recordset(%(groups)s::json) AS g(project text, type text, schema_version integer, pool text)
CROSS JOIN LATERAL (
    SELECT t.id FROM tasks t
    WHERE t.project = g.project AND t.type = g.type AND t.schema_version = g.schema_version AND t.pool = g.pool
      AND t.status = 'waiting' AND t.wake_at <= (SELECT app_now())
    ORDER BY t.wake_at LIMIT 200) t
LIMIT 1000

-- :: resume
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
w AS MATERIALIZED (
    SELECT t.id, t.wake_at, x.name, x.signal, x.children
    FROM unnest(%(ids)s::uuid[]) AS wanted(id) CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted.id FOR NO KEY UPDATE SKIP LOCKED) t
    CROSS JOIN LATERAL json_to_record(t.wait::json) AS x(name text, signal text, children json)
    -- `at_once`: the waits that this call has begun a moment ago, and no others: a repeated suspension changes nothing
    WHERE t.status = 'waiting' AND (%(at_once)s::text IS NULL OR t.wait::json ->> 'call' = %(at_once)s::text)
), seen AS MATERIALIZED (
    SELECT w.*, g.seq AS signal_seq, g.payload, k.fits,
           CASE WHEN s.name IS NOT NULL THEN 'stored'
                WHEN g.seq IS NOT NULL THEN 'signal'
                WHEN k.settled AND (w.wake_at IS NULL OR k.last <= w.wake_at) THEN 'children'
                WHEN w.wake_at <= clock.now THEN 'time' END AS ended_by
    FROM clock, w
    LEFT JOIN steps s ON s.task_id = w.id AND s.name = w.name
    LEFT JOIN LATERAL (
        -- in time or never, also where nobody looked at the time
        SELECT seq, payload FROM signals WHERE task_id = w.id AND name = w.signal AND consumed_by IS NULL
          AND (w.wake_at IS NULL OR at <= w.wake_at) ORDER BY seq LIMIT 1) g ON w.signal IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT bool_and(c.finished_at IS NOT NULL) AS settled, max(c.finished_at) AS last,
               sum(coalesce(octet_length(c.result), 0) + coalesce(octet_length(c.failure), 0)) <= %(inline_bytes)s AS fits
        FROM json_array_elements_text(w.children) AS n(name)
        JOIN steps p ON p.task_id = w.id AND p.name = n.name AND p.kind = 'child' JOIN tasks c ON c.id = p.child_id
        ) k ON w.children IS NOT NULL
), ended AS MATERIALIZED (
    SELECT s.*, CASE s.ended_by WHEN 'signal' THEN '{"signal":' || s.payload || '}' WHEN 'time' THEN '{"timedOut":true}'
                                -- read only now: every child that ends asks whether it was the last one
                                WHEN 'children' THEN (
        SELECT json_build_object('children', json_agg(
                   CASE WHEN s.fits THEN json_build_object('name', n.name, 'taskId', c.id, 'status', c.status, 'result', c.result::json,
                                                           'failure', c.failure::json)
                        ELSE json_build_object('name', n.name, 'taskId', c.id, 'status', c.status) END ORDER BY n.place))::text
        FROM json_array_elements_text(s.children) WITH ORDINALITY AS n(name, place)
        JOIN steps p ON p.task_id = s.id AND p.name = n.name AND p.kind = 'child' JOIN tasks c ON c.id = p.child_id)
                                END AS output
    FROM seen s WHERE s.ended_by IS NOT NULL
), moved AS (
    UPDATE tasks t SET
        status = 'queued', hold = CASE WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END, due_at = clock.now,
        wait = NULL, wake_at = NULL,
        releases = CASE WHEN e.ended_by = 'stored' THEN t.releases ELSE 0 END,
        steps_stored = t.steps_stored + (e.ended_by <> 'stored')::integer,
        steps_bytes = t.steps_bytes + coalesce(octet_length(e.output), 0),
        journal_seq = t.journal_seq + 1
    FROM ended e, clock WHERE t.id = e.id
    RETURNING t.id, t.project, t.type, t.schema_version, t.pool, t.concurrency_key, t.due_at, t.journal_seq, clock.now AS at
), stored AS (
    INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, output)
    SELECT m.id, e.name, 'wait', m.journal_seq, m.journal_seq, 'succeeded', true, e.output
    FROM moved m JOIN ended e ON e.id = m.id WHERE e.ended_by <> 'stored'
), consumed AS (
    UPDATE signals g SET consumed_by = e.name FROM ended e WHERE e.ended_by = 'signal' AND g.task_id = e.id AND g.seq = e.signal_seq
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT m.id, m.journal_seq, m.at, 'resumed',
           CASE WHEN %(at_once)s::text IS NOT NULL THEN json_build_object('name', e.name, 'by', e.ended_by, 'atOnce', true)
                ELSE json_build_object('name', e.name, 'by', e.ended_by) END::text
    FROM moved m JOIN ended e ON e.id = m.id
)
SELECT m.id, m.project, m.type, m.schema_version, m.pool, m.concurrency_key, m.due_at, e.ended_by FROM moved m JOIN ended e ON e.id = m.id
