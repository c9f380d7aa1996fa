-- The sweep's first look, and its bookkeeping. Called by leases.look, figures and sweep.

-- :: look
-- A row where there is nothing to do, and then the sweep is over: nothing is queued, runs, sleeps or has ended lately, and no
-- schedule is due. Each EXISTS is a partial index's first row. Bookkeeping that this does not see is done once an hour.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
found AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM tasks WHERE status = 'queued' AND hold IS NULL)
        OR EXISTS (SELECT FROM tasks WHERE status = 'queued' AND hold = 'due')
        OR EXISTS (SELECT FROM tasks WHERE status = 'queued' AND hold = 'concurrency')
        OR EXISTS (SELECT FROM tasks WHERE status = 'queued' AND hold = 'previous')
        OR EXISTS (SELECT FROM tasks WHERE status = 'running')
        OR EXISTS (SELECT FROM tasks WHERE status = 'waiting' AND wake_at IS NOT NULL)
        OR EXISTS (SELECT FROM tasks WHERE parent_id IS NOT NULL AND finished_at IS NOT NULL AND NOT parent_told)
        OR EXISTS (SELECT FROM tasks WHERE status = 'cancelled' AND cascades)
        OR EXISTS (SELECT FROM tasks WHERE finished_at >= (SELECT rolled_up_to FROM service) - interval '2 minutes')
        OR EXISTS (SELECT FROM schedules WHERE paused_at IS NULL AND error IS NULL AND next_due_at <= (SELECT now FROM clock))
        OR EXISTS (SELECT FROM schedules WHERE error IS NOT NULL) AS busy
)
UPDATE service s SET swept_at = clock.now, ticked_at = clock.now FROM clock, found
WHERE NOT found.busy AND s.rolled_up_to > clock.now - interval '1 hour'
RETURNING (SELECT coalesce(sum(u.count), 0) FROM projects p CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM tasks WHERE project = p.name AND status = 'outcome-unknown' LIMIT 1000) few) u)::integer AS unknown,
    -- as firings.ahead tells it
    (SELECT extract(epoch FROM min(next_due_at) - clock.now) FROM schedules WHERE paused_at IS NULL AND error IS NULL)::double precision AS due_in

-- :: figures
-- For the log, after a sweep that was more than a look. Bounded: a backlog of a million costs as much as one of ten thousand.
SELECT (SELECT count(*) FROM (SELECT FROM tasks WHERE status = 'queued' AND hold IS NULL LIMIT 10000) few)::integer AS ready,
       (SELECT count(*) FROM (SELECT FROM tasks WHERE status = 'running' LIMIT 10000) few)::integer AS running,
       (SELECT coalesce(sum(u.count), 0) FROM projects p CROSS JOIN LATERAL (
           SELECT count(*) FROM (SELECT FROM tasks WHERE project = p.name AND status = 'outcome-unknown' LIMIT 1000) few) u)::integer AS unknown,
       (SELECT coalesce(extract(epoch FROM (SELECT app_now()) - min(few.due_at)), 0) FROM (
           SELECT due_at FROM tasks WHERE status = 'queued' AND hold IS NULL LIMIT 10000) few)::double precision AS oldest_age

-- :: forget
-- Instances that nobody has seen for longer than any wait that they could still excuse, and claims nobody may repeat.
WITH gone AS (
    DELETE FROM instances WHERE last_seen < (SELECT app_now()) - make_interval(secs => %(limit_seconds)s) RETURNING 1
), old AS (
    SELECT c.ctid FROM claims c WHERE c.at < (SELECT app_now()) - interval '15 minutes' - interval '1 minute'
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.project = c.project AND t.instance_id = c.instance_id AND t.claim_id = c.claim_id
                        AND t.status IN ('running', 'queued', 'outcome-unknown') AND t.claim_id IS NOT NULL AND NOT t.attempt_ended)
    ORDER BY c.at LIMIT 5000 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM claims c USING old WHERE c.ctid = old.ctid RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS instances, (SELECT count(*) FROM forgotten) AS claims

-- :: roll_up
-- Outcomes per type and minute, from the finished index. The last minutes are counted again each time, since a transaction may
-- commit a little after the instant that it wrote. A suspension moves due_at past the first start, so that nothing tells any more
-- when the task was first due: such a task says nothing about waits (its wait would be below zero).
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
since AS MATERIALIZED (
    SELECT date_trunc('minute', greatest(coalesce(rolled_up_to, clock.now - interval '1 day'), clock.now - interval '1 day') - interval '1 minute') AS at
    FROM service, clock
), counted AS (
    SELECT t.project, t.type, t.schema_version, date_trunc('minute', t.finished_at) AS minute,
           count(*) FILTER (WHERE t.status = 'succeeded') AS succeeded, count(*) FILTER (WHERE t.status = 'failed') AS failed,
           count(*) FILTER (WHERE t.status = 'cancelled') AS cancelled,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM t.started_at - (t.created_at + greatest(t.due_at - t.created_at, interval '0')))::double precision)
               FILTER (WHERE t.started_at >= t.due_at AND t.attempts = 0) AS waits,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM t.finished_at - t.attempt_started_at)::double precision)
               FILTER (WHERE t.attempt_started_at IS NOT NULL) AS runs
    FROM tasks t WHERE t.finished_at >= (SELECT at FROM since) AND t.finished_at <= (SELECT now FROM clock) GROUP BY 1, 2, 3, 4
), stored AS (
    INSERT INTO roll_ups (project, type, schema_version, minute, succeeded, failed, cancelled, wait_p50, wait_p95, run_p50, run_p95)
    SELECT project, type, schema_version, minute, succeeded, failed, cancelled, waits[1], waits[2], runs[1], runs[2] FROM counted
    ORDER BY project, type, schema_version, minute
    ON CONFLICT (project, type, schema_version, minute) DO UPDATE
        SET succeeded = excluded.succeeded, failed = excluded.failed, cancelled = excluded.cancelled, wait_p50 = excluded.wait_p50,
            wait_p95 = excluded.wait_p95, run_p50 = excluded.run_p50, run_p95 = excluded.run_p95
        WHERE (roll_ups.succeeded, roll_ups.failed, roll_ups.cancelled) <> (excluded.succeeded, excluded.failed, excluded.cancelled)
    RETURNING 1
), dropped AS (
    DELETE FROM roll_ups r USING clock WHERE r.minute < clock.now - interval '25 hours'
)
UPDATE service SET rolled_up_to = clock.now FROM clock
WHERE rolled_up_to IS NULL OR rolled_up_to < clock.now - interval '20 seconds' OR EXISTS (SELECT FROM stored)

-- :: done
UPDATE service SET swept_at = app_now() WHERE swept_at IS NULL OR swept_at < app_now() - interval '10 seconds'
