-- Renews leases, stores progress and log lines, and marks the instance alive: one request for a whole worker.
-- A current attempt that had expired is recovered, unless its deadline has passed: from then on nothing is renewed.
-- Locks: the instance's row is not waited for; tasks by ascending id with SKIP LOCKED, the rest one by one with a short timeout.
-- Called by attempts.heartbeat: lock · renew · alive; then complete.explain for what was not renewed.

-- :: renew
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
item AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(items)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer,
        progress json, logs json, log_seq bigint, log_lines integer, log_bytes integer)
), mine AS MATERIALIZED (
    SELECT t.*, CASE WHEN i.progress IS NOT NULL THEN json_build_object(
               'percent', i.progress -> 'percent', 'message', i.progress -> 'message', 'at', rfc3339(clock.now)) END AS new_progress,
           i.logs, i.log_seq AS last_line, i.log_lines AS new_lines, i.log_bytes AS new_bytes,
           coalesce(t.deadline_at <= clock.now, false) AS overdue,
           t.status <> 'running' AS lapsed,
           (i.progress IS NOT NULL OR i.logs IS NOT NULL) AND coalesce(t.journalled_at > clock.now - make_interval(secs => %(report_interval)s), false) AS too_often
    -- one row by its id at a time, in the order of the items (by id): no other plan, whatever the statistics say
    FROM clock, item i CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE SKIP LOCKED) t
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status IN ('running', 'queued', 'outcome-unknown') AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
), decided AS (
    SELECT m.*, m.lapsed AND NOT m.overdue AS recovered,
           m.new_progress IS NOT NULL AND NOT m.too_often AND (NOT m.lapsed OR NOT m.overdue) AS progresses,
           m.logs IS NOT NULL AND NOT m.too_often AND m.last_line > m.log_seq AND m.log_lines >= 0 AND (NOT m.lapsed OR NOT m.overdue) AS logs_on,
           m.log_lines + m.new_lines > %(max_lines)s OR m.log_bytes + m.new_bytes > %(max_bytes)s AS capped
    FROM mine m
), moved AS (
    UPDATE tasks t SET
        status = CASE WHEN d.recovered THEN 'running' ELSE t.status END,
        hold = CASE WHEN d.recovered THEN NULL ELSE t.hold END,
        failure = CASE WHEN d.recovered THEN NULL ELSE t.failure END,
        reconcile = CASE WHEN d.recovered AND t.reconcile::json ->> 'attemptId' = t.attempt_id::text THEN t.reconcile::json ->> 'told' ELSE t.reconcile END,
        attempts = t.attempts - (d.recovered AND t.attempt_expired)::integer,
        attempt_expired = t.attempt_expired AND NOT d.recovered,
        attempt_reported = true,
        lease_expires_at = CASE WHEN d.overdue THEN t.lease_expires_at
            ELSE least(clock.now + make_interval(secs => t.lease_seconds), t.deadline_at + interval '30 seconds') END,
        progress = CASE WHEN d.progresses THEN d.new_progress::text ELSE t.progress END,
        log_seq = CASE WHEN d.logs_on THEN greatest(t.log_seq, d.last_line) ELSE t.log_seq END,
        -- negative: the cap was reached and said so; nothing more is kept of this attempt
        log_lines = CASE WHEN NOT d.logs_on THEN t.log_lines WHEN d.capped THEN -1 ELSE t.log_lines + d.new_lines END,
        log_bytes = CASE WHEN d.logs_on AND NOT d.capped THEN t.log_bytes + d.new_bytes ELSE t.log_bytes END,
        journalled_at = CASE WHEN d.progresses OR d.logs_on THEN clock.now ELSE t.journalled_at END,
        journal_seq = t.journal_seq + d.recovered::integer + d.progresses::integer + d.logs_on::integer
    FROM decided d, clock WHERE t.id = d.id
    RETURNING t.id, t.attempt_id, t.lease_expires_at, t.journal_seq, t.cancel_requested, t.status, t.concurrency_key, d.overdue, d.recovered,
              d.progresses, d.logs_on, d.capped, d.new_progress, d.logs, d.log_seq AS seen_line, d.too_often, clock.now AS at
), recovered AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id)
    SELECT id, journal_seq - progresses::integer - logs_on::integer, at, 'lease-recovered', attempt_id FROM moved WHERE recovered
), progressed AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq - logs_on::integer, at, 'progress', attempt_id, new_progress::text FROM moved WHERE progresses
), logged AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq, at, 'log', attempt_id,
           CASE WHEN capped THEN '{"truncated": true, "lines": []}'
                ELSE json_build_object('lines', (SELECT json_agg(l) FROM json_array_elements(logs) l WHERE (l ->> 'seq')::bigint > seen_line))::text END
    FROM moved WHERE logs_on
)
SELECT attempt_id, lease_expires_at, cancel_requested, overdue, status, too_often, concurrency_key, recovered FROM moved

-- :: alive
-- An instance that has ended stays ended: a heartbeat that was overtaken by its goodbye does not bring it back.
UPDATE instances SET last_seen = app_now(),
    draining = coalesce(%(draining)s, draining), slots = coalesce(nullif(%(slots)s::integer, 0), slots)
WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s AND ended_at IS NULL
  AND (last_seen < app_now() - interval '5 seconds'
       OR draining <> coalesce(%(draining)s, draining) OR slots <> coalesce(nullif(%(slots)s::integer, 0), slots))

-- :: state
SELECT (SELECT app_now()) AS now, coalesce((SELECT drain_requested FROM instances
    WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s), false) AS drain
