-- Stores what became of one step: started, succeeded, failed. The first final write wins and is returned to every later one.
-- Locks: the task. Called by steps.store: complete.lock_one · revive · store.

-- :: store
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_record(%(item)s::json) AS i(task_id uuid, attempt_id uuid, fence integer, token text, epoch integer,
        name text, status text, effect_safety text, reconciles boolean, output text, error text, final boolean, tries integer, bytes integer)
), mine AS MATERIALIZED (
    SELECT t.id, t.attempt_id, i.name, i.status, i.output, i.error, i.bytes, i.reconciles, s.name IS NOT NULL AS known,
           coalesce(i.effect_safety, s.effect_safety, t.effect_safety) AS safety,
           i.status = 'succeeded' OR i.status = 'failed'
               AND (i.final OR coalesce(i.effect_safety, s.effect_safety, t.effect_safety) = 'non-idempotent') AS final,
           coalesce(s.status = 'started' AND s.effect_safety = 'non-idempotent', false) AS was_open, coalesce(s.reconciles, false) AS was_asking,
           i.status = 'started' AND coalesce(i.effect_safety, s.effect_safety, t.effect_safety) = 'non-idempotent' AS opens,
           coalesce(s.tries, 0) + (i.status = 'succeeded' OR i.status = 'failed' AND (s.status = 'failed' AND s.tries >= i.tries) IS NOT TRUE)::integer AS tries,
           CASE WHEN s.kind <> 'step' THEN 'other-kind'
                WHEN s.final THEN 'kept'
                WHEN i.status = 'started' AND s.status = 'started' AND s.attempt_id = i.attempt_id AND s.reconciles = i.reconciles
                     AND s.effect_safety = coalesce(i.effect_safety, s.effect_safety) THEN 'kept'
                -- a repeat of a try that was counted already; what has started since failed anew, and what is for good is stored so
                WHEN i.status = 'failed' AND s.status = 'failed' AND s.tries >= i.tries
                     AND NOT (i.final OR coalesce(i.effect_safety, s.effect_safety, t.effect_safety) = 'non-idempotent') THEN 'kept'
                WHEN s.name IS NULL AND t.steps_stored >= %(most_steps)s THEN 'too-many'
                WHEN t.steps_bytes + i.bytes > %(most_bytes)s THEN 'too-large'
                ELSE 'stored' END AS verdict
    FROM item i CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = i.task_id FOR NO KEY UPDATE) t
    LEFT JOIN steps s ON s.task_id = t.id AND s.name = i.name
    WHERE t.project = %(project)s AND t.attempt_id = i.attempt_id AND t.fence = i.fence AND t.token_hash = decode(i.token, 'hex')
      AND NOT t.attempt_ended AND t.status = 'running' AND i.epoch = (SELECT epoch FROM service)
      AND within_narrowing(%(scope)s, t.type, t.pool, t.worker_id)
), counted AS (
    UPDATE tasks t SET
        journal_seq = t.journal_seq + 1, attempt_reported = true, releases = 0,
        steps_stored = t.steps_stored + (NOT m.known)::integer, steps_bytes = t.steps_bytes + m.bytes,
        open_steps = t.open_steps - (m.was_open AND NOT m.was_asking)::integer + (m.opens AND NOT m.reconciles)::integer,
        asking_steps = t.asking_steps - (m.was_open AND m.was_asking)::integer + (m.opens AND m.reconciles)::integer
    FROM mine m WHERE t.id = m.id AND m.verdict = 'stored'
    RETURNING t.id, t.journal_seq
), heard AS (
    UPDATE tasks t SET attempt_reported = true FROM mine m WHERE t.id = m.id AND m.verdict <> 'stored' AND NOT t.attempt_reported
), stored AS (
    INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, effect_safety, reconciles, tries, output, error, attempt_id)
    SELECT m.id, m.name, 'step', c.journal_seq, CASE WHEN m.final THEN c.journal_seq END, m.status, m.final, m.safety, m.reconciles, m.tries, m.output, m.error, m.attempt_id
    FROM mine m JOIN counted c ON c.id = m.id
    ON CONFLICT (task_id, name) DO UPDATE
        SET outcome_seq = excluded.outcome_seq, status = excluded.status, final = excluded.final, effect_safety = excluded.effect_safety, reconciles = excluded.reconciles,
            tries = excluded.tries, output = excluded.output, error = excluded.error, attempt_id = excluded.attempt_id
    RETURNING name, kind, seq, status, final, effect_safety, reconciles, tries, output, error
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, attempt_id, data)
    SELECT m.id, c.journal_seq, (SELECT app_now()), 'step', m.attempt_id,
           json_build_object('name', m.name, 'status', m.status, 'final', m.final, 'tries', m.tries, 'effectSafety', m.safety,
                             'error', m.error::json)::text
    FROM mine m JOIN counted c ON c.id = m.id
)
SELECT m.verdict, coalesce(n.name, o.name) AS name, coalesce(n.kind, o.kind) AS kind, coalesce(n.seq, o.seq) AS seq,
       coalesce(n.status, o.status) AS status, coalesce(n.final, o.final) AS final, coalesce(n.effect_safety, o.effect_safety) AS effect_safety,
       coalesce(n.reconciles, o.reconciles) AS reconciles, coalesce(n.tries, o.tries) AS tries,
       CASE WHEN n.name IS NULL THEN o.output ELSE n.output END AS output, CASE WHEN n.name IS NULL THEN o.error ELSE n.error END AS error
FROM mine m LEFT JOIN stored n ON n.name = m.name
LEFT JOIN steps o ON o.task_id = m.id AND o.name = m.name AND n.name IS NULL
