-- Tasks of a schedule that wait until an earlier one has ended (hold 'previous'): lets the oldest in once nothing of its schedule
-- that came before it is unsettled. One whose outcome is unknown has not ended.
-- Locks: tasks with SKIP LOCKED, so it waits for nobody; what it passed over, or a crash left, the sweep finds.
-- Called by previous.release after whatever ends a task, and previous.repair.

-- :: release
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
first AS MATERIALIZED (
    SELECT f.id FROM json_to_recordset(%(schedules)s::json) AS w(owner text, name text) CROSS JOIN LATERAL (
        SELECT t.id, t.created_at FROM tasks t
        WHERE t.project = %(project)s AND t.schedule_name = w.name AND coalesce(t.schedule_owner, '') = w.owner
          AND t.finished_at IS NULL AND t.hold = 'previous'
        ORDER BY t.created_at, t.id LIMIT 1) f
    WHERE NOT EXISTS (
        SELECT FROM tasks t
        WHERE t.project = %(project)s AND t.schedule_name = w.name AND coalesce(t.schedule_owner, '') = w.owner
          AND t.finished_at IS NULL AND t.hold IS DISTINCT FROM 'previous'
          -- one that came later (the schedule may allow overlap by now) stands before nobody
          AND (t.created_at, t.id) < (f.created_at, f.id))
), locked AS MATERIALIZED (
    SELECT t.id FROM first f CROSS JOIN LATERAL (
        SELECT id FROM tasks WHERE id = f.id AND status = 'queued' AND hold = 'previous' FOR NO KEY UPDATE SKIP LOCKED) t
)
UPDATE tasks t SET hold = CASE WHEN t.due_at > clock.now THEN 'due' WHEN t.concurrency_key IS NOT NULL THEN 'concurrency' END
FROM clock WHERE t.id = ANY(ARRAY(SELECT id FROM locked))
RETURNING t.id, t.type, t.schema_version, t.pool, t.concurrency_key, t.due_at

-- :: waiting
-- Schedules with a task that waits although nothing stands before it any more.
SELECT DISTINCT w.project, coalesce(w.schedule_owner, '') AS owner, w.schedule_name AS name FROM tasks w
WHERE w.status = 'queued' AND w.hold = 'previous' AND NOT EXISTS (
    SELECT FROM tasks t
    WHERE t.project = w.project AND t.schedule_name = w.schedule_name AND coalesce(t.schedule_owner, '') = coalesce(w.schedule_owner, '')
      AND t.finished_at IS NULL AND t.hold IS DISTINCT FROM 'previous' AND (t.created_at, t.id) < (w.created_at, w.id))
LIMIT 1000

-- :: superseded
-- Tasks that are to end because a later one of their schedule waits for it, and that were not asked yet: those that came before it.
-- Of the tasks that wait themselves, all but the last are to end.
SELECT DISTINCT t.project, t.id FROM tasks w
JOIN schedules s ON s.project = w.project AND s.owner = coalesce(w.schedule_owner, '') AND s.name = w.schedule_name AND s.overlap = 'cancel-previous'
JOIN tasks t ON t.project = w.project AND t.schedule_name = w.schedule_name AND coalesce(t.schedule_owner, '') = s.owner AND t.finished_at IS NULL
    AND NOT t.cancel_requested AND t.status IN ('queued', 'running', 'waiting')
    AND (t.created_at, t.id) < (w.created_at, w.id)
WHERE w.status = 'queued' AND w.hold = 'previous' AND (%(project)s::text IS NULL OR w.project = %(project)s)
  AND (%(ids)s::uuid[] IS NULL OR w.id = ANY(%(ids)s))
ORDER BY t.id LIMIT 1000
