-- Deletes settled tasks whole (journal, steps, signals and idempotency key with them) once they were kept long enough: only with their key
-- expired and after their parent. Bounded: every run shrinks the backlog, whatever its size.
-- Locks: tasks with SKIP LOCKED. Called by leases.retain, again and again until nothing is left or time is up.

-- :: delete
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
old AS MATERIALIZED (
    SELECT t.id FROM tasks t, clock
    WHERE t.finished_at < (SELECT now FROM clock) - make_interval(secs => %(keep_seconds)s)
      AND NOT EXISTS (SELECT FROM idempotency i WHERE i.task_id = t.id AND i.expires_at > clock.now)
      -- a child outlives its parent and every rerun that kept it: a later rerun may wait for its outcome again
      AND (t.parent_id IS NULL OR NOT EXISTS (SELECT FROM steps s WHERE s.child_id = t.id))
    ORDER BY t.finished_at LIMIT %(limit)s FOR UPDATE OF t SKIP LOCKED
), events AS (
    DELETE FROM journal j WHERE j.task_id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1
), steps_gone AS (
    DELETE FROM steps s WHERE s.task_id = ANY(ARRAY(SELECT id FROM old))
), signals_gone AS (
    DELETE FROM signals g WHERE g.task_id = ANY(ARRAY(SELECT id FROM old))
), keys AS (
    DELETE FROM idempotency i WHERE i.task_id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1
), gone AS (
    DELETE FROM tasks t WHERE t.id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS tasks, (SELECT count(*) FROM events) AS events, (SELECT count(*) FROM keys) AS keys

-- :: done
UPDATE service SET retained_at = app_now()
