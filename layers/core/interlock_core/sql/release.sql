-- Gives attempts back: running → queued at once and uncounted (the 101st release in a row is counted), cancelled where that
-- was asked for, outcome-unknown where a started attempt is not safe to repeat. Past its deadline it is a time-out.
-- Locks: tasks by ascending id with SKIP LOCKED; a claim given back by its id locks its instance's row first, as a claim does.
-- Called by attempts.release: (forget) · complete.lock · settle; then complete.explain for what was not released.

-- :: enter
SELECT 1 FROM instances WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s FOR UPDATE

-- :: forget
INSERT INTO claims (project, worker_id, instance_id, claim_id, call, released, at)
VALUES (%(project)s, %(worker_id)s, %(instance_id)s, %(claim_id)s, %(call)s, true, app_now())
ON CONFLICT (project, worker_id, instance_id, claim_id) DO UPDATE SET released = true, at = excluded.at
RETURNING gave_back

-- :: gave_back
-- What the claim gave back, so that a repeat is answered as the first call was.
UPDATE claims SET gave_back = %(answer)s
WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s AND claim_id = %(claim_id)s

-- :: of_claim
-- Attempts of a claim whose answer never came: those that never reported anything.
SELECT t.id AS task_id, t.attempt_id, t.fence, encode(t.token_hash, 'hex') AS token FROM tasks t
WHERE t.project = %(project)s AND t.worker_id = %(worker_id)s AND t.instance_id = %(instance_id)s AND t.claim_id = %(claim_id)s
  AND t.status IN ('running', 'queued', 'outcome-unknown') AND NOT t.attempt_ended AND NOT t.attempt_reported
ORDER BY t.id

-- :: settle
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
item AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(items)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer,
        started boolean, reason text, report_hash text, unheard boolean)
), mine AS MATERIALIZED (
    SELECT t.*, i.started, i.reason, i.report_hash, t.status <> 'running' AS recovered,
           t.attempts - (t.status <> 'running' AND t.attempt_expired)::integer AS before,
           -- what this attempt was to find out: its own expiry, if there was one, is taken back
           CASE WHEN t.reconcile::json ->> 'attemptId' = t.attempt_id::text THEN t.reconcile::json ->> 'told' ELSE t.reconcile END AS told
    -- one row by its id at a time, in the order of the items (by id): no other plan, whatever the statistics say
    FROM item i CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE SKIP LOCKED) t
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status IN ('running', 'queued', 'outcome-unknown') AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
      -- given back by its claim: only while nothing was heard of it, judged now that the row is locked
      AND NOT (coalesce(i.unheard, false) AND t.attempt_reported)
), decided AS (
    SELECT m.id, m.before, m.recovered, m.told, m.started, m.reason, m.report_hash, e.status, e.counts OR worn AS counts,
           CASE WHEN e.counts THEN clock.now + make_interval(secs => backoff_seconds(m.before + 1, m.initial_delay_seconds, m.multiplier,
                                                                                 m.max_delay_seconds, m.jitter, random()))
                -- not later than now: the release of a recovered attempt undoes the backoff of its expiry
                ELSE least(m.due_at, clock.now) END AS again_at,
           CASE e.status
               WHEN 'outcome-unknown' THEN json_build_object('code', e.code, 'message', CASE WHEN m.started THEN 'a started attempt that is not safe to repeat was given back'
                                                             ELSE 'given back before anybody could be asked what an earlier attempt did' END,
                                                             'details', CASE WHEN m.open_steps + m.asking_steps > 0 THEN json_build_object('step', open_step(m.id)) END,
                                                             'attemptId', m.attempt_id)::text
               WHEN 'failed' THEN json_build_object('code', e.code, 'message', CASE WHEN worn THEN 'the attempt was given back 101 times in a row'
                                                    ELSE 'the attempt ran longer than its timeout' END,
                   'details', CASE e.code WHEN 'ATTEMPTS_EXHAUSTED' THEN json_build_object('last', json_build_object(
                       'code', CASE WHEN worn THEN 'RELEASED' ELSE 'ATTEMPT_TIMEOUT' END, 'message', coalesce(m.reason, 'released'))) END,
                   'attemptId', m.attempt_id)::text END AS failure
    FROM mine m CROSS JOIN clock
    -- OFFSET 0: as in complete.sql
    CROSS JOIN LATERAL (SELECT safe_to_repeat(m.effect_safety, m.reconciles) AS safe, coalesce(m.deadline_at <= clock.now, false) AS overdue OFFSET 0) f
    CROSS JOIN LATERAL (SELECT * FROM attempt_end('released', f.safe, m.open_steps > 0 OR m.asking_steps > 0 AND f.overdue AND m.before + 1 >= m.max_attempts,
                                   m.started, m.cancel_requested, f.overdue, m.before + 1 < m.max_attempts) OFFSET 0) r
    CROSS JOIN LATERAL (SELECT r.status = 'queued' AND NOT r.counts AND m.releases >= 100 AS worn OFFSET 0) w
    -- the last attempt (where a cancel was requested, any is), though somebody was still to be asked what happened
    CROSS JOIN LATERAL (SELECT w.worn AND m.before + 1 >= m.max_attempts AS last, r.status = 'cancelled' AS cancelled, m.open_steps + m.asking_steps > 0 OR m.told IS NOT NULL
                            OR m.started AND m.effect_safety = 'non-idempotent' AS asking OFFSET 0) x
    CROSS JOIN LATERAL (SELECT CASE WHEN (x.last OR x.cancelled) AND x.asking THEN 'outcome-unknown' WHEN x.last THEN 'failed' ELSE r.status END AS status,
                               CASE WHEN (x.last OR x.cancelled) AND x.asking THEN 'RELEASED_UNSAFE' WHEN x.last THEN 'ATTEMPTS_EXHAUSTED' ELSE r.code END AS code, r.counts OFFSET 0) e
), moved AS (
    UPDATE tasks t SET
        status = d.status,
        hold = CASE WHEN d.status <> 'queued' THEN NULL WHEN d.again_at > clock.now THEN 'due'
                    WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END,
        due_at = CASE WHEN d.status = 'queued' THEN d.again_at ELSE t.due_at END,
        failure = d.failure,
        finished_at = CASE WHEN d.status IN ('failed', 'cancelled') THEN clock.now END,
        attempts = d.before + d.counts::integer,
        releases = CASE WHEN d.counts THEN 0 ELSE t.releases + 1 END,
        attempt_ended = true, attempt_expired = false,
        reconcile = CASE WHEN d.status = 'queued' AND d.started AND t.effect_safety = 'non-idempotent'
                         THEN json_build_object('attemptId', t.attempt_id, 'reason', 'RELEASED')::text ELSE d.told END,
        journal_seq = t.journal_seq + 1 + d.recovered::integer + (d.status <> 'queued')::integer
    FROM decided d, clock WHERE t.id = d.id
    RETURNING t.*, d.recovered, d.started AS had_started, d.reason, d.report_hash, clock.now AS at
), recovered AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id)
    SELECT id, journal_seq - 1 - (status <> 'queued')::integer, at, 'lease-recovered', attempt_id FROM moved WHERE recovered
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash, report_hash)
    SELECT id, journal_seq - (status <> 'queued')::integer, at, 'released', attempt_id,
           json_build_object('started', had_started, 'reason', reason, 'status', status)::text,
           attempt_id, token_hash, decode(report_hash, 'hex')
    FROM moved
), ended AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq, at, status, attempt_id, coalesce(failure, '{}') FROM moved WHERE status <> 'queued'
)
SELECT attempt_id, status, id, type, schema_version, pool, concurrency_key, due_at, parent_id, cascades, schedule_owner, schedule_name FROM moved

-- :: epoch
SELECT epoch FROM service
