-- What follows the end of a task: its parent looks whether its wait is over, its children are asked to cancel. Each is a
-- transaction of its own after the end's; what a crash left between them is found by these statements again.
-- Called by ends.follow and ends.repair.

-- :: told
-- The parents have looked. Locks: the children, after their parents (ids grow from parent to child).
UPDATE tasks SET parent_told = true WHERE id = ANY(%(ids)s) AND finished_at IS NOT NULL AND NOT parent_told

-- :: untold
SELECT id, project, parent_id FROM tasks WHERE parent_id IS NOT NULL AND finished_at IS NOT NULL AND NOT parent_told LIMIT %(limit)s

-- :: open_children
-- Of cancelled tasks: the children that go with them. One whose outcome is unknown is left to a person.
SELECT c.id FROM steps s JOIN tasks c ON c.id = s.child_id AND c.parent_id = s.task_id
WHERE s.task_id = ANY(%(ids)s) AND NOT s.detached AND (c.status IN ('queued', 'waiting') OR c.status = 'running' AND NOT c.cancel_requested)
ORDER BY c.id LIMIT 1000

-- :: cascaded
UPDATE tasks SET cascades = false WHERE id = ANY(%(ids)s) AND status = 'cancelled'

-- :: cascades
SELECT id, project FROM tasks WHERE status = 'cancelled' AND cascades ORDER BY id LIMIT %(limit)s
