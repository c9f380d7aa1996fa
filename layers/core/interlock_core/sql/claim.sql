-- Leases ready work to one instance: queued → running, fence + 1.
-- Locks: the instance's row (claims of one instance come one after another, so that a slow call and its repeat cannot both
-- lease), then lapsed and due tasks by SKIP LOCKED, then concurrency keys by value, then ready tasks by SKIP LOCKED.
-- Called by claims.claim: enter · remember · expire.lapsed · promote.due · lock_keys · pick · outlook; then repeat, for a known claimId.

-- :: enter
INSERT INTO instances (project, worker_id, instance_id, pool, slots, serves, started_at, last_seen)
VALUES (%(project)s, %(worker_id)s, %(instance_id)s, %(pool)s, %(slots)s, %(serves)s, app_now(), app_now())
ON CONFLICT (project, worker_id, instance_id) DO UPDATE
    SET pool = excluded.pool, serves = excluded.serves, last_seen = excluded.last_seen, ended_at = NULL,
        slots = CASE WHEN instances.registered THEN instances.slots ELSE greatest(instances.slots, excluded.slots) END
    -- a row locked but not written: the row is written only every few seconds, or when what it says has changed
    WHERE instances.last_seen < excluded.last_seen - interval '5 seconds' OR instances.ended_at IS NOT NULL
       OR instances.pool <> excluded.pool OR instances.serves <> excluded.serves
       OR (NOT instances.registered AND instances.slots < excluded.slots)

-- :: remember
INSERT INTO claims (project, worker_id, instance_id, claim_id, call, at)
VALUES (%(project)s, %(worker_id)s, %(instance_id)s, %(claim_id)s, %(call)s, app_now())
ON CONFLICT (project, worker_id, instance_id, claim_id) DO UPDATE SET call = excluded.call, at = excluded.at
    WHERE NOT claims.released AND claims.at < excluded.at - interval '15 minutes'
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.project = claims.project AND t.instance_id = claims.instance_id
                        AND t.claim_id = claims.claim_id AND t.status IN ('running', 'queued', 'outcome-unknown')
                        AND NOT t.attempt_ended AND t.worker_id = claims.worker_id)

-- :: lock_keys
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT q.concurrency_key AS key
    FROM json_to_recordset(%(handlers)s::json) AS h(type text, schema_version integer, slots integer)
    CROSS JOIN LATERAL (
        SELECT t.concurrency_key FROM tasks t
        WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.pool = %(pool)s
          AND t.status = 'queued' AND t.hold IS NULL AND t.concurrency_key IS NOT NULL
          -- as the pick leaves them out: it takes no task whose key was not locked here
          AND (t.start_deadline_at IS NULL OR t.started_at IS NOT NULL OR t.start_deadline_at > (SELECT app_now()))
        ORDER BY t.priority DESC, t.due_at, t.id LIMIT h.slots) q
), chosen AS MATERIALIZED (
    SELECT k.key FROM concurrency_keys k JOIN wanted w ON w.key = k.key
    WHERE k.project = %(project)s ORDER BY k.key FOR NO KEY UPDATE OF k
)
UPDATE concurrency_keys k SET locked_by = %(call)s FROM chosen c WHERE k.project = %(project)s AND k.key = c.key

-- :: pick
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
mine AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM claims WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s
                     AND claim_id = %(claim_id)s AND call = %(call)s AND NOT released) AS yes
), h AS MATERIALIZED (
    SELECT h.*, g.max_attempts, g.initial_delay_seconds, g.multiplier, g.max_delay_seconds, g.jitter, g.lease_seconds, g.timeout_seconds,
           -- the stricter of what the claim says and what this worker id registered
           CASE WHEN 'non-idempotent' IN (h.effect_safety, g.effect_safety) THEN 'non-idempotent'
                WHEN 'idempotent' IN (h.effect_safety, g.effect_safety) THEN 'idempotent' ELSE 'pure' END AS safety,
           h.reconciles AND coalesce(g.reconciles, true) AS asks
    FROM json_to_recordset(%(handlers)s::json) AS h(type text, schema_version integer, effect_safety text, reconciles boolean, slots integer)
    LEFT JOIN handlers g ON g.project = %(project)s AND g.worker_id = %(worker_id)s AND g.type = h.type AND g.schema_version = h.schema_version
    -- paused work stays in the index: whoever claims does not look for it
    WHERE NOT EXISTS (SELECT FROM pauses y WHERE y.project = %(project)s AND y.type = h.type AND y.schema_version = h.schema_version
                        AND y.paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM projects p WHERE p.name = %(project)s AND p.paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM instances n WHERE n.project = %(project)s AND n.worker_id = %(worker_id)s
                        AND n.instance_id = %(instance_id)s AND n.drain_requested)
), candidates AS MATERIALIZED (
    SELECT q.*, row_number() OVER (PARTITION BY q.concurrency_key ORDER BY q.priority DESC, q.due_at, q.id) AS place
    FROM mine, clock, h CROSS JOIN LATERAL (
        SELECT t.id, t.type, t.schema_version, t.priority, t.due_at, t.concurrency_key, t.concurrency_limit,
               -- all of an answer's item that has no fixed size
               octet_length(t.input) + coalesce(octet_length(t.tags::text), 0) + coalesce(octet_length(t.trace), 0)
                   + least(t.steps_bytes + 100 * t.steps_stored, %(step_budget)s) AS bytes
        FROM tasks t
        WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version AND t.pool = %(pool)s
          AND t.status = 'queued' AND t.hold IS NULL AND mine.yes
          AND (t.start_deadline_at IS NULL OR t.started_at IS NOT NULL OR t.start_deadline_at > clock.now)
        ORDER BY t.priority DESC, t.due_at, t.id LIMIT h.slots FOR NO KEY UPDATE OF t SKIP LOCKED) q
), locked AS MATERIALIZED (  -- the candidates' keys, as far as this call holds their lock
    SELECT k.key, k.most, (SELECT count(*) FROM tasks t WHERE t.project = %(project)s AND t.concurrency_key = k.key AND t.status = 'running') AS held
    FROM (SELECT DISTINCT concurrency_key AS key FROM candidates WHERE concurrency_key IS NOT NULL) c
    JOIN concurrency_keys k ON k.project = %(project)s AND k.key = c.key AND k.locked_by = %(call)s
), judged AS MATERIALIZED (
    SELECT c.*, c.concurrency_key IS NULL OR coalesce(c.place <= least(c.concurrency_limit, l.most) - l.held, false) AS fits,
           l.key IS NOT NULL AS counted
    FROM candidates c LEFT JOIN locked l ON l.key = c.concurrency_key
), fitting AS (
    SELECT c.*, row_number() OVER w AS n, sum(c.bytes) OVER w AS total
    FROM judged c WHERE c.fits
    WINDOW w AS (ORDER BY c.priority DESC, c.due_at, c.id)
), started AS (
    UPDATE tasks t SET
        status = 'running', hold = NULL, fence = t.fence + 1,
        -- the call's own id (UUIDv7), with the place in its last 16 bits
        attempt_id = (left(%(call)s::uuid::text, 32) || lpad(to_hex(f.n), 4, '0'))::uuid, token_hash = lease_token_hash(%(seed)s, f.n),
        attempt_ended = false, attempt_expired = false, attempt_reported = false,
        -- from here on the attempt before cannot come back: what that one was told is not needed any more
        reconcile = CASE WHEN t.reconcile IS NOT NULL THEN json_build_object('attemptId', t.reconcile::json -> 'attemptId',
                                                                             'reason', t.reconcile::json -> 'reason')::text END,
        worker_id = %(worker_id)s, instance_id = %(instance_id)s, claim_id = %(claim_id)s, effect_safety = h.safety, reconciles = h.asks,
        attempt_started_at = clock.now, started_at = coalesce(t.started_at, clock.now),
        max_attempts = coalesce(t.max_attempts, h.max_attempts, 5),
        initial_delay_seconds = coalesce(t.initial_delay_seconds, h.initial_delay_seconds, 1),
        multiplier = coalesce(t.multiplier, h.multiplier, 2),
        max_delay_seconds = coalesce(t.max_delay_seconds, h.max_delay_seconds, 300),
        jitter = coalesce(t.jitter, h.jitter, 0.2),
        lease_seconds = coalesce(t.lease_seconds, h.lease_seconds, 60),
        -- none at the first claim is none for good
        timeout_seconds = coalesce(t.timeout_seconds, CASE WHEN t.fence = 0 THEN h.timeout_seconds END),
        deadline_at = clock.now + make_interval(secs => coalesce(t.timeout_seconds, CASE WHEN t.fence = 0 THEN h.timeout_seconds END)),
        lease_expires_at = least(clock.now + make_interval(secs => coalesce(t.lease_seconds, h.lease_seconds, 60)),
                                 clock.now + make_interval(secs => coalesce(t.timeout_seconds, CASE WHEN t.fence = 0 THEN h.timeout_seconds END) + 30)),
        log_seq = 0, log_lines = 0, log_bytes = 0, journalled_at = NULL, progress = NULL,
        journal_seq = t.journal_seq + 1
    FROM fitting f
    JOIN h ON h.type = f.type AND h.schema_version = f.schema_version
    CROSS JOIN clock
    WHERE t.id = f.id AND f.n <= %(slots)s AND (f.n = 1 OR f.total <= %(budget)s)
    RETURNING t.*, f.n
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data, ended_attempt, token_hash)
    SELECT s.id, s.journal_seq, s.attempt_started_at, 'claimed', s.attempt_id,
           json_build_object('workerId', s.worker_id, 'instanceId', s.instance_id, 'number', s.attempts + 1, 'fence', s.fence,
                             'effectSafety', s.effect_safety)::text,
           o.attempt_id, o.token_hash
    FROM started s
    -- the row as it was before this statement: an attempt that expired, was never ended and is replaced now
    LEFT JOIN tasks o ON o.id = s.id AND o.attempt_id IS NOT NULL AND NOT o.attempt_ended
)
SELECT s.id, s.attempt_id, s.n, s.fence, s.attempts, s.max_attempts, s.lease_expires_at, s.lease_seconds, s.deadline_at, s.type, s.reconcile, s.steps_stored,
       s.schema_version, s.pool, s.input, s.tags, s.trace, s.effect_scope, s.cancel_requested, s.rerun_of, s.parent_id,
       s.concurrency_key, (SELECT epoch FROM service) AS epoch, r.refused
-- one row at least: the keys of ready tasks that do not fit (their place is outside the index; admit.sql puts them there)
FROM (SELECT array_agg(DISTINCT concurrency_key) AS refused FROM judged WHERE NOT fits AND counted) r
LEFT JOIN started s ON true ORDER BY s.n

-- :: repeat
-- The answer of a claim that was lost: its current attempts, leases renewed, tokens fresh; lapsed ones that nobody else
-- claimed are recovered (their expiry is taken back).
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
held AS MATERIALIZED (
    SELECT t.id, t.status, row_number() OVER (ORDER BY t.id) AS n FROM (
        SELECT t.id, t.status FROM tasks t, clock
        WHERE t.project = %(project)s AND t.instance_id = %(instance_id)s AND t.worker_id = %(worker_id)s AND t.claim_id = %(claim_id)s
          AND t.status IN ('running', 'queued', 'outcome-unknown') AND NOT t.attempt_ended
          AND (t.deadline_at IS NULL OR t.deadline_at > clock.now OR t.status = 'running')
          AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
        ORDER BY t.id FOR NO KEY UPDATE OF t) t
), renewed AS (
    UPDATE tasks t SET
        status = 'running', hold = NULL, failure = NULL, token_hash = lease_token_hash(%(seed)s, held.n),
        attempts = t.attempts - (held.status <> 'running' AND t.attempt_expired)::integer,
        attempt_expired = false,
        reconcile = CASE WHEN t.reconcile::json ->> 'attemptId' = t.attempt_id::text THEN t.reconcile::json ->> 'told' ELSE t.reconcile END,
        lease_expires_at = least(clock.now + make_interval(secs => t.lease_seconds), t.deadline_at + interval '30 seconds'),
        journal_seq = t.journal_seq + (held.status <> 'running')::integer
    FROM held CROSS JOIN clock
    WHERE t.id = held.id
    RETURNING t.*, held.n, held.status <> 'running' AS recovered
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id)
    SELECT r.id, r.journal_seq, clock.now, 'lease-recovered', r.attempt_id FROM renewed r, clock WHERE r.recovered
)
SELECT r.id, r.attempt_id, r.n, r.fence, r.attempts, r.max_attempts, r.lease_expires_at, r.lease_seconds, r.deadline_at, r.type, r.reconcile, r.steps_stored,
       r.schema_version, r.pool, r.input, r.tags, r.trace, r.effect_scope, r.cancel_requested, r.rerun_of, r.parent_id,
       r.concurrency_key, (SELECT epoch FROM service) AS epoch
FROM renewed r ORDER BY r.n

-- :: outlook
-- When something may become claimable for these handlers, whether more is ready now, and how long this instance may rest.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
h AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(handlers)s::json) AS h(type text, schema_version integer)
    WHERE NOT EXISTS (SELECT FROM pauses y WHERE y.project = %(project)s AND y.type = h.type AND y.schema_version = h.schema_version
                        AND y.paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM projects p WHERE p.name = %(project)s AND p.paused_at IS NOT NULL)
), found AS MATERIALIZED (
    SELECT (SELECT min(q.due_at) FROM h CROSS JOIN LATERAL (
                SELECT t.due_at FROM tasks t WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version
                  AND t.pool = %(pool)s AND t.status = 'queued' AND t.hold = 'due' ORDER BY t.due_at LIMIT 1) q) AS due_at,
           (SELECT min(q.wake_at) FROM h CROSS JOIN LATERAL (
                SELECT t.wake_at FROM tasks t WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version
                  AND t.pool = %(pool)s AND t.status = 'waiting' AND t.wake_at IS NOT NULL ORDER BY t.wake_at LIMIT 1) q) AS wake_at,
           -- handler by handler, as all of these: a join may read everything that is ready to know that there is something
           (SELECT min(q.lease_at) FROM h CROSS JOIN LATERAL (
                SELECT min(t.lease_expires_at) AS lease_at FROM tasks t WHERE t.project = %(project)s AND t.type = h.type
                  AND t.schema_version = h.schema_version AND t.pool = %(pool)s AND t.status = 'running') q) AS lease_at,
           EXISTS (SELECT FROM h CROSS JOIN LATERAL (
                SELECT t.id FROM tasks t WHERE t.project = %(project)s AND t.type = h.type AND t.schema_version = h.schema_version
                  AND t.pool = %(pool)s AND t.status = 'queued' AND t.hold IS NULL LIMIT 1) q) AS more
), me AS MATERIALIZED (
    SELECT i.*, EXISTS (SELECT FROM tasks t WHERE t.project = %(project)s AND t.instance_id = %(instance_id)s
                          AND t.claim_id = %(claim_id)s AND t.status = 'running') AS got
    FROM instances i WHERE i.project = %(project)s AND i.worker_id = %(worker_id)s AND i.instance_id = %(instance_id)s
), rested AS (
    UPDATE instances i SET empty_claims = CASE WHEN me.got THEN 0 ELSE least(me.empty_claims + 1, 30) END,
        told_seconds = CASE WHEN me.got THEN %(poll_seconds)s::double precision
                            ELSE least(%(idle_poll_seconds)s, %(poll_seconds)s * power(1.3, least(me.empty_claims, 30))) END
    FROM me
    WHERE i.project = me.project AND i.worker_id = me.worker_id AND i.instance_id = me.instance_id
      AND (NOT me.got OR me.empty_claims > 0)
    RETURNING i.told_seconds
)
SELECT clock.now, found.more, me.drain_requested AS drain,
       coalesce((SELECT told_seconds FROM rested), %(poll_seconds)s::double precision) AS told,
       extract(epoch FROM least(found.due_at, found.wake_at, found.lease_at) - clock.now)::double precision AS next_in,
       coalesce(found.wake_at <= clock.now, false) AS wakes,
       (SELECT call FROM claims WHERE project = %(project)s AND worker_id = %(worker_id)s AND instance_id = %(instance_id)s
          AND claim_id = %(claim_id)s) = %(call)s AS mine
FROM clock, found, me
