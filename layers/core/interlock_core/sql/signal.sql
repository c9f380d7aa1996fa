-- Keeps a signal until a wait consumes it; stored once under its key. Locks: the task. Called by waits.signal:
-- resolve.lock · signal · resume.

-- :: signal
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
mine AS MATERIALIZED (
    SELECT t.id, t.status, s.seq AS known_seq, s.hash AS known_hash,
           CASE WHEN s.seq IS NOT NULL THEN CASE WHEN s.hash = %(hash)s THEN 'kept' ELSE 'differs' END
                WHEN t.finished_at IS NOT NULL THEN 'finished'
                WHEN (SELECT count(*) FROM signals k WHERE k.task_id = t.id AND k.consumed_by IS NULL) >= %(most)s THEN 'too-many'
                ELSE 'stored' END AS verdict
    FROM (SELECT * FROM tasks WHERE id = %(id)s FOR NO KEY UPDATE) t
    LEFT JOIN signals s ON s.task_id = t.id AND s.signal_key = %(signal_key)s
    WHERE t.project = %(project)s
), counted AS (
    UPDATE tasks t SET journal_seq = t.journal_seq + 1 FROM mine m WHERE t.id = m.id AND m.verdict = 'stored' RETURNING t.id, t.journal_seq
), stored AS (
    INSERT INTO signals (task_id, seq, name, signal_key, payload, hash, at)
    SELECT c.id, c.journal_seq, %(name)s, %(signal_key)s, %(payload)s, %(hash)s, clock.now FROM counted c, clock
), noted AS (
    INSERT INTO journal (task_id, seq, at, kind, data)
    SELECT c.id, c.journal_seq, clock.now, 'signalled', json_build_object('name', %(name)s::text, 'signalKey', %(signal_key)s::text)::text
    FROM counted c, clock
)
SELECT m.verdict, m.status, coalesce(c.journal_seq, m.known_seq) AS seq FROM mine m LEFT JOIN counted c ON c.id = m.id
