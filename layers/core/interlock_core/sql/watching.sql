-- What the streams of watchers ask: how the journals of watched tasks go on, and what a project does that nobody hints at.
-- No locks. Called by the stream through watching.py, for all watched tasks or projects of a process in one statement.

-- :: events
-- By primary keys only. A task's counter, its status and its events are read in one snapshot: whoever has been told the last event knows the status.
WITH asked AS MATERIALIZED (
    SELECT w.id, w.after, t.status, t.journal_seq
    FROM json_to_recordset(%(watched)s::json) AS w(id uuid, after integer) LEFT JOIN tasks t ON t.id = w.id
    WHERE %(always)s OR t.journal_seq IS DISTINCT FROM w.after
), found AS MATERIALIZED (
    SELECT a.id, j.*, sum(octet_length(j.data)) OVER (ORDER BY a.id, j.seq) - octet_length(j.data) AS before
    FROM asked a CROSS JOIN LATERAL (
        SELECT e.seq, e.at, e.kind, e.attempt_id, e.data FROM journal e
        WHERE e.task_id = a.id AND e.seq > a.after ORDER BY e.seq LIMIT %(most)s) j
)
SELECT a.id, a.status, a.journal_seq, f.seq, f.at, f.kind, f.attempt_id, f.data
FROM asked a LEFT JOIN found f ON f.id = a.id AND f.before < %(bytes)s
ORDER BY a.id, f.seq

-- :: pulse
-- Of each project: what runs, up to `most`, and a sum over what is shown of its workers, to be compared with the one before.
WITH clock AS MATERIALIZED (SELECT app_now() AS now)
SELECT p.project, running.tasks AS running, present.sum || ' ' || registered.sum AS workers
FROM clock CROSS JOIN unnest(%(projects)s::text[]) AS p(project)
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(r.id || ' ' || r.fence || ' ' || r.cancel_requested), '{}') AS tasks FROM (
        SELECT t.id, t.fence, t.cancel_requested FROM tasks t
        WHERE t.project = p.project AND t.status = 'running' LIMIT %(most)s) r) running
CROSS JOIN LATERAL (  -- one that was silent for long is offline and stays so
    SELECT coalesce(sum(hashtextextended(concat_ws(' ', i.worker_id, i.instance_id, i.pool, i.slots, i.draining, i.drain_requested,
        i.registered, i.serves, i.ended_at IS NULL,
        i.last_seen > clock.now - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds))), 0)), 0) AS sum
    FROM instances i WHERE i.project = p.project AND i.last_seen > clock.now - interval '15 minutes') present
CROSS JOIN LATERAL (
    SELECT coalesce(sum(hashtextextended(concat_ws(' ', w.worker_id, w.registered_at), 0)), 0) AS sum
    FROM worker_ids w WHERE w.project = p.project) registered
