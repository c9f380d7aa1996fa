-- What the task streams ask: how the journals of watched tasks go on. No locks, primary keys only.
-- Called by the stream through watching.py, for all watched tasks of a process in one statement.

-- :: events
-- A task's counter, its status and its events are read in one snapshot: whoever has been told the last event knows the status.
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
