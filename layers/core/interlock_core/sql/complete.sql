-- Ends attempts by their own reports: running → succeeded, failed, queued (retry), waiting, cancelled or outcome-unknown.
-- A current attempt that had expired is first recovered (its expiry uncounted), in the same transaction.
-- Locks: tasks by ascending id with SKIP LOCKED; a row that somebody else holds is left for `explain`, then tried alone.
-- Called by attempts.complete: lock · settle (· resume.resume, where one suspended); then explain · late for what was not settled.

-- :: lock
SELECT t.id FROM tasks t
WHERE t.id = ANY(%(ids)s) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED

-- :: lock_one
SELECT t.id, set_config('lock_timeout', '2s', true) FROM tasks t WHERE t.id = ANY(%(ids)s) FOR NO KEY UPDATE

-- :: settle
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
item AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(items)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer,
        outcome text, result text, code text, message text, details json, retry_after double precision, report_hash text,
        step text, wait json, orphans json)
), mine AS MATERIALIZED (
    SELECT t.*, i.outcome, i.result AS given, i.code AS error_code, i.message, i.details, i.retry_after, i.report_hash, i.wait AS wanted, i.orphans,
           coalesce(i.step, CASE WHEN t.open_steps + t.asking_steps > 0 THEN open_step(t.id) END) AS step,
           t.status <> 'running' AS recovered,
           t.attempts - (t.status <> 'running' AND t.attempt_expired)::integer AS before,
           -- what this attempt was to find out: its own expiry, if there was one, is taken back
           CASE WHEN t.reconcile::json ->> 'attemptId' = t.attempt_id::text THEN t.reconcile::json ->> 'told' ELSE t.reconcile END AS told
    -- one row by its id at a time, in the order of the items (by id): no other plan, whatever the statistics say
    FROM item i CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE SKIP LOCKED) t
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status IN ('running', 'queued', 'outcome-unknown') AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
      -- `explain` says why a suspension is not taken
      AND (i.outcome <> 'suspended' OR t.effect_safety <> 'non-idempotent' AND t.steps_stored < %(most_steps)s AND t.steps_bytes < %(most_bytes)s
           AND NOT EXISTS (SELECT FROM steps s WHERE s.task_id = t.id AND s.name = i.wait ->> 'name' AND s.kind <> 'wait')
           AND NOT EXISTS (SELECT FROM json_array_elements_text(i.wait -> 'children') c(name)
                           WHERE NOT EXISTS (SELECT FROM steps s WHERE s.task_id = t.id AND s.name = c.name AND s.kind = 'child')))
), decided AS (
    SELECT m.id, m.before, m.recovered, m.told, m.given, m.report_hash, m.wanted, m.orphans, e.status, e.counts,
           CASE WHEN e.status IN ('failed', 'outcome-unknown') THEN
               json_build_object('code', coalesce(e.code, m.error_code), 'message',
                   CASE e.code WHEN 'ATTEMPTS_EXHAUSTED' THEN format('attempt %%s of %%s failed', m.before + 1, m.max_attempts)
                               WHEN 'RETRY_NOT_SAFE' THEN 'a non-idempotent attempt is never repeated: ' || m.message
                               WHEN 'ATTEMPT_TIMEOUT' THEN 'the attempt ran longer than its timeout'
                               WHEN 'CANCELLED_BY_HANDLER' THEN 'the handler stopped without being asked to'
                               WHEN 'RELEASED_UNSAFE' THEN 'the attempt stopped inside a step that is not safe to repeat' ELSE m.message END,
                   'details', CASE e.code WHEN 'ATTEMPTS_EXHAUSTED' THEN json_build_object('last', l.last)
                                          WHEN 'RETRY_NOT_SAFE' THEN json_build_object('last', l.last)
                                          ELSE CASE WHEN e.status = 'outcome-unknown' AND m.step IS NOT NULL
                                                    THEN json_build_object('step', m.step, 'details', m.details) ELSE m.details END END,
                   'attemptId', m.attempt_id)::text END AS failure,
           l.last,
           clock.now + make_interval(secs => coalesce(CASE WHEN m.retry_after IS NOT NULL THEN least(greatest(m.retry_after, 0), 2592000) END,
               backoff_seconds(m.before + 1, m.initial_delay_seconds, m.multiplier, m.max_delay_seconds, m.jitter, random()))) AS again_at
    FROM mine m CROSS JOIN clock
    -- OFFSET 0: each is computed once. Flattened, every use of a column writes out again all that it is made of, and building that
    -- for each call costs more than all the rest of it.
    CROSS JOIN LATERAL (SELECT CASE m.outcome WHEN 'cancelled'
        THEN json_build_object('code', 'ATTEMPT_TIMEOUT', 'message', 'the attempt ran longer than its timeout')
        WHEN 'suspended' THEN json_build_object('code', 'SUSPENDED', 'message', 'suspended 101 times in a row without a new step')
        ELSE json_build_object('code', m.error_code, 'message', m.message, 'details', m.details) END AS last OFFSET 0) l
    CROSS JOIN LATERAL (SELECT coalesce(m.deadline_at <= clock.now, false) AS overdue OFFSET 0) o
    -- whether an attempt is left that asks what an open step did: a suspension is not counted, a stop for no reason ends the task,
    -- and so does one where a cancel was requested
    CROSS JOIN LATERAL (SELECT o.overdue, CASE WHEN m.cancel_requested THEN false WHEN m.outcome = 'suspended' THEN true
                               WHEN m.outcome = 'cancelled' AND NOT o.overdue THEN false
                               ELSE m.before + 1 < m.max_attempts END AS asks OFFSET 0) f
    CROSS JOIN LATERAL (SELECT * FROM attempt_end(m.outcome, safe_to_repeat(m.effect_safety, m.reconciles), m.open_steps > 0 OR m.asking_steps > 0 AND NOT f.asks,
        true, m.cancel_requested, f.overdue, m.before + 1 < m.max_attempts) OFFSET 0) r
    CROSS JOIN LATERAL (SELECT r.status = 'waiting' AND m.releases >= 100 AS worn OFFSET 0) w
    CROSS JOIN LATERAL (SELECT w.worn AND m.before + 1 >= m.max_attempts AS last, m.asking_steps > 0 AS asking,
                               -- the last attempt, and it did not find out what one before it did
                               m.told IS NOT NULL AND (r.code = 'ATTEMPTS_EXHAUSTED' OR r.status = 'cancelled' AND m.outcome = 'retryable') AS unasked OFFSET 0) x
    CROSS JOIN LATERAL (SELECT CASE WHEN x.last AND x.asking OR x.unasked THEN 'outcome-unknown' WHEN x.last THEN 'failed' ELSE r.status END AS status,
                               CASE WHEN x.last AND x.asking OR x.unasked AND m.outcome = 'cancelled' THEN 'RELEASED_UNSAFE' WHEN x.unasked THEN NULL
                                    WHEN x.last THEN 'ATTEMPTS_EXHAUSTED' ELSE r.code END AS code,
                               r.counts OR w.worn AS counts OFFSET 0) e
), moved AS (
    UPDATE tasks t SET
        status = d.status,
        hold = CASE WHEN d.status <> 'queued' THEN NULL WHEN d.again_at > clock.now THEN 'due'
                    WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END,
        due_at = CASE WHEN d.status = 'queued' THEN d.again_at ELSE t.due_at END,
        result = CASE WHEN d.status = 'succeeded' THEN d.given END,
        failure = d.failure,
        finished_at = CASE WHEN d.status IN ('succeeded', 'failed', 'cancelled') THEN clock.now END,
        attempts = d.before + d.counts::integer,
        releases = CASE WHEN d.status = 'waiting' AND NOT d.counts THEN t.releases + 1 ELSE 0 END,
        attempt_ended = true, attempt_expired = false,
        -- one that asks to be tried again may not have learnt what it was to find out: the next one asks too
        reconcile = CASE WHEN d.status = 'queued' THEN d.told END,
        wait = CASE WHEN d.status = 'waiting' THEN json_build_object('name', d.wanted -> 'name', 'signal', d.wanted -> 'signal',
                                                                     'children', d.wanted -> 'children', 'call', %(call)s::text)::text END,
        wake_at = CASE WHEN d.status = 'waiting' THEN coalesce((d.wanted ->> 'until')::timestamptz,
                       clock.now + make_interval(secs => (d.wanted ->> 'afterSeconds')::double precision)) END,
        journal_seq = t.journal_seq + 1 + d.recovered::integer + (d.orphans IS NOT NULL)::integer
    FROM decided d, clock WHERE t.id = d.id
    RETURNING t.*, d.recovered, d.report_hash, d.last, d.orphans, d.wanted, clock.now AS at
), recovered AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id)
    SELECT id, journal_seq - 1 - (orphans IS NOT NULL)::integer, at, 'lease-recovered', attempt_id FROM moved WHERE recovered
), orphaned AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT id, journal_seq - 1, at, 'steps-orphaned', attempt_id, json_build_object('steps', orphans)::text FROM moved WHERE orphans IS NOT NULL
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash, report_hash)
    SELECT id, journal_seq, at, CASE status WHEN 'queued' THEN 'retry-scheduled' WHEN 'waiting' THEN 'suspended' ELSE status END, attempt_id,
           CASE status WHEN 'queued' THEN json_build_object('error', last, 'attempts', attempts, 'dueAt', rfc3339(due_at))::text
                       WHEN 'waiting' THEN json_build_object('wait', json_build_object('name', wanted -> 'name', 'signal', wanted -> 'signal', 'children', wanted -> 'children'),
                                                              'wakeAt', rfc3339(wake_at))::text
                       ELSE coalesce(failure, '{}') END,
           attempt_id, token_hash, decode(report_hash, 'hex')
    FROM moved
)
SELECT attempt_id, status, id, type, schema_version, pool, concurrency_key, due_at, parent_id, cascades, wake_at, schedule_owner, schedule_name FROM moved

-- :: explain
-- Why a report was not taken: the verdict by what the task says now, and what its journal says of the attempt.
SELECT i.attempt_id, t.id IS NOT NULL AS found, i.epoch <> (SELECT epoch FROM service) AS other_epoch,
       coalesce(t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex') AND NOT t.attempt_ended
                AND t.status IN ('running', 'queued', 'outcome-unknown'), false) AS current,
       e.kind AS ended_by,
       CASE e.kind WHEN 'released' THEN e.data::json ->> 'status' WHEN 'retry-scheduled' THEN 'queued'
                   WHEN 'suspended' THEN CASE WHEN n.at_once THEN 'queued' ELSE 'waiting' END ELSE e.kind END AS led_to,
       coalesce(e.token_hash = decode(i.token, 'hex'), false) AS token_fits,
       coalesce(e.report_hash = decode(i.report_hash, 'hex') AND e.token_hash = decode(i.token, 'hex')
                AND (t.attempt_id <> i.attempt_id OR t.fence = i.fence), false) AS same_report,
       t.status, t.type, t.pool, t.worker_id, t.effect_safety, t.steps_stored, t.steps_bytes,
       (SELECT s.name FROM steps s WHERE s.task_id = t.id AND s.name = i.wait ->> 'name' AND s.kind <> 'wait') AS other_kind,
       -- a wait for children that were never submitted would never end
       (SELECT c.name FROM json_array_elements_text(i.wait -> 'children') c(name)
        WHERE NOT EXISTS (SELECT FROM steps s WHERE s.task_id = t.id AND s.name = c.name AND s.kind = 'child') LIMIT 1) AS no_child
FROM json_to_recordset(%(items)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer, report_hash text, wait json)
LEFT JOIN tasks t ON t.id = i.task_id AND t.project = %(project)s
LEFT JOIN LATERAL (SELECT seq, kind, data, token_hash, report_hash FROM journal j
                   WHERE j.task_id = t.id AND j.ended_attempt = i.attempt_id ORDER BY j.seq DESC LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT (j.data::json ->> 'atOnce')::boolean AS at_once FROM journal j
                   WHERE j.task_id = t.id AND j.seq = e.seq + 1 AND j.kind = 'resumed') n ON e.kind = 'suspended'

-- :: late
-- Keeps a refused final outcome once, as an event that changes nothing.
WITH item AS (
    SELECT * FROM json_to_recordset(%(items)s::json) AS i(task_id uuid, attempt_id uuid, outcome text, result text, code text, message text)
), owner AS MATERIALIZED (
    SELECT t.id, i.attempt_id, i.outcome, i.result, i.code, i.message FROM item i CROSS JOIN LATERAL (SELECT id, project FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE SKIP LOCKED) t
    WHERE t.project = %(project)s
), counted AS (
    UPDATE tasks t SET journal_seq = t.journal_seq + 1 FROM owner o
    WHERE t.id = o.id AND NOT EXISTS (SELECT FROM journal j WHERE j.task_id = o.id AND j.kind = 'late-report' AND j.attempt_id = o.attempt_id)
    RETURNING t.id, t.journal_seq, o.attempt_id AS late_attempt, o.outcome, o.result AS given, o.code, o.message
)
INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
SELECT id, journal_seq, (SELECT app_now()), 'late-report', late_attempt,
       CASE outcome WHEN 'succeeded' THEN json_build_object('outcome', outcome, 'result', given::json)
                    ELSE json_build_object('outcome', outcome, 'error', json_build_object('code', code, 'message', message)) END::text
FROM counted
