-- Durable runs: the steps of a task, what it waits for, the signals it was sent, and the children it submitted.

ALTER TABLE tasks
    ADD COLUMN steps_stored integer NOT NULL DEFAULT 0,         -- rows in `steps`
    ADD COLUMN steps_bytes  bigint NOT NULL DEFAULT 0,          -- of their outputs
    -- Started non-idempotent steps without an outcome and without a hook that could ask for it. While there is one, the effect
    -- may have happened and nothing repeats the attempt by itself.
    ADD COLUMN open_steps   integer NOT NULL DEFAULT 0 CHECK (open_steps >= 0),
    ADD COLUMN asking_steps integer NOT NULL DEFAULT 0 CHECK (asking_steps >= 0),  -- the same with a hook: repeated, asking first
    ADD COLUMN reconcile    text,                               -- {"attemptId", "reason"}: the next attempt asks before it runs
    ADD COLUMN wait         text,                               -- {"name", "signal"?, "children"?} of a waiting task
    ADD COLUMN wake_at      timestamptz,                        -- its time limit, or the end of its sleep
    ADD COLUMN parent_told  boolean NOT NULL DEFAULT false,     -- of a settled child: its parent has looked
    ADD COLUMN cascades     boolean NOT NULL DEFAULT false,     -- has children to be asked to cancel if it is cancelled
    ADD CONSTRAINT waiting_waits CHECK ((status = 'waiting') = (wait IS NOT NULL)),
    ADD CONSTRAINT only_waiting_wakes CHECK (wake_at IS NULL OR status = 'waiting');

CREATE INDEX tasks_wake ON tasks (project, type, schema_version, pool, wake_at) WHERE status = 'waiting' AND wake_at IS NOT NULL;
-- What a crash left undone between the end of a task and what follows it: empty, nearly always.
CREATE INDEX tasks_untold ON tasks (parent_id) WHERE parent_id IS NOT NULL AND finished_at IS NOT NULL AND NOT parent_told;
CREATE INDEX tasks_cascade ON tasks (id) WHERE status = 'cancelled' AND cascades;

-- Outcomes of steps, finished waits (kind 'wait') and children by the name their parent gave them (kind 'child', "succeeded"
-- when submitted). Names are one space per task. A final row never changes.
CREATE TABLE steps (
    task_id       uuid NOT NULL,
    name          text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL CHECK (kind IN ('step', 'wait', 'child')),
    seq           integer NOT NULL,                             -- of its first event in the journal
    outcome_seq   integer,                                      -- of its final one
    status        text COLLATE "C" NOT NULL CHECK (status IN ('started', 'succeeded', 'failed')),
    final         boolean NOT NULL,
    effect_safety text COLLATE "C" CHECK (effect_safety IN ('pure', 'idempotent', 'non-idempotent')),
    reconciles    boolean NOT NULL DEFAULT false,
    tries         integer NOT NULL DEFAULT 0,
    output        text,
    error         text,
    attempt_id    uuid,                                         -- the one that wrote it last
    child_id      uuid,
    detached      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, name),
    CHECK ((kind = 'child') = (child_id IS NOT NULL)),
    CHECK (final = (status = 'succeeded') OR status = 'failed'),
    CHECK (final = (outcome_seq IS NOT NULL))
);
CREATE INDEX steps_seq ON steps (task_id, seq);
CREATE INDEX steps_child ON steps (child_id) WHERE child_id IS NOT NULL;

CREATE TABLE signals (
    task_id     uuid NOT NULL,
    seq         integer NOT NULL,                               -- of its event in the journal: the order of consumption
    name        text COLLATE "C" NOT NULL,
    signal_key  text COLLATE "C" NOT NULL,
    payload     text NOT NULL,
    hash        bytea NOT NULL,                                 -- SHA-256 of name and payload in canonical form
    at          timestamptz NOT NULL,
    consumed_by text COLLATE "C",                               -- the wait that took it
    PRIMARY KEY (task_id, seq)
);
CREATE UNIQUE INDEX signals_key ON signals (task_id, signal_key);
CREATE INDEX signals_kept ON signals (task_id, name, seq) WHERE consumed_by IS NULL;

-- How an attempt ends, as one table: what was said of it (report, release, expiry) and what is known of it decide the task's
-- next status, and the failure code where it is not the handler's own. `counts`: the attempt is counted. The first rule that
-- applies decides.
--   safe        of the handler: what runs outside its steps may be repeated
--   open        a step that may not be repeated has started and has no outcome: whatever is said, nobody knows what it did
--   cancelled   past its deadline is a time-out, retried like 'retryable' where that is safe; unasked and in time: 'stopped'
--   released    past its deadline counts as 'cancelled'
-- Returns a table of one row (not OUT parameters) so that the planner inlines it: called per row it would cost 0.4 ms each.
DROP FUNCTION attempt_end(text, boolean, boolean, boolean, boolean, boolean);
CREATE FUNCTION attempt_end(said text, safe boolean, open boolean, started boolean, cancel boolean, overdue boolean, attempts_left boolean)
RETURNS TABLE (status text, code text, counts boolean) LANGUAGE sql IMMUTABLE ROWS 1
BEGIN ATOMIC
    SELECT split_part(e.rule, ' ', 1), nullif(split_part(e.rule, ' ', 2), '-'), split_part(e.rule, ' ', 3) = 'counts'
    FROM (SELECT CASE
        --   what was said                                     and                                     status, code, counted
        WHEN d.s = 'succeeded'                                                                    THEN 'succeeded - -'
        WHEN d.s = 'failed'                                                                       THEN 'failed - -'
        WHEN d.s = 'unknown'                                                                      THEN 'outcome-unknown - -'
        WHEN d.s = 'retryable' AND open                                                           THEN 'outcome-unknown - counts'
        WHEN d.s IN ('cancelled', 'stopped', 'suspended') AND open                                THEN 'outcome-unknown RELEASED_UNSAFE -'
        WHEN d.s = 'suspended' AND cancel                                                         THEN 'cancelled - -'
        WHEN d.s = 'suspended'                                                                    THEN 'waiting - -'
        WHEN d.s = 'stopped'                                                                      THEN 'failed CANCELLED_BY_HANDLER -'
        WHEN d.s = 'retryable' AND cancel                                                         THEN 'cancelled - counts'
        WHEN d.s = 'retryable' AND NOT safe                                                       THEN 'failed RETRY_NOT_SAFE counts'
        WHEN d.s = 'cancelled' AND cancel                                                         THEN 'cancelled - -'
        WHEN d.s = 'cancelled' AND NOT safe                                                       THEN 'failed ATTEMPT_TIMEOUT counts'
        WHEN d.s = 'released' AND (NOT started OR safe AND NOT open) AND cancel                   THEN 'cancelled - -'
        WHEN d.s = 'released' AND (NOT started OR safe AND NOT open)                              THEN 'queued - -'
        WHEN d.s = 'released'                                                                     THEN 'outcome-unknown RELEASED_UNSAFE -'
        WHEN d.s = 'expired' AND (NOT safe OR open) AND overdue                                   THEN 'outcome-unknown ATTEMPT_TIMEOUT counts'
        WHEN d.s = 'expired' AND (NOT safe OR open)                                               THEN 'outcome-unknown LEASE_EXPIRED counts'
        WHEN d.s = 'expired' AND cancel                                                           THEN 'cancelled - counts'
        WHEN attempts_left                                                                        THEN 'queued - counts'
        ELSE 'failed ATTEMPTS_EXHAUSTED counts' END AS rule
        FROM (SELECT CASE WHEN said = 'released' AND overdue THEN 'cancelled'
                          WHEN said = 'cancelled' AND NOT cancel AND NOT overdue THEN 'stopped' ELSE said END AS s) d) e;
END;

-- The name of the step whose effect may have happened, or null: the oldest, those that nobody can ask for first.
CREATE FUNCTION open_step(of_task uuid) RETURNS text LANGUAGE sql STABLE
    RETURN (SELECT s.name FROM steps s WHERE s.task_id = of_task AND s.status = 'started' AND s.effect_safety = 'non-idempotent' ORDER BY s.reconciles, s.seq LIMIT 1);
