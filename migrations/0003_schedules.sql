-- Schedules: what is to be submitted when; and their firings, one per (owner, schedule, due instant).

-- The owner is a worker id, or '' for those made through the API. Everything that decides when comes first.
CREATE TABLE schedules (
    project        text COLLATE "C" NOT NULL,
    owner          text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    cron           text COLLATE "C",
    time_zone      text COLLATE "C",
    every_seconds  double precision CHECK (every_seconds >= 1),
    anchor_at      timestamptz NOT NULL,               -- intervals are counted from here
    next_due_at    timestamptz,                        -- null: nothing more is due, ever
    overlap        text COLLATE "C" NOT NULL CHECK (overlap IN ('allow', 'skip', 'cancel-previous')),
    catch_up       text COLLATE "C" NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
    paused_at      timestamptz,
    -- What each firing submits. `options` is the rest of the submit as columns of a task, in JSON; `given` is how it was said.
    type           text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL CHECK (schema_version >= 1),
    input          text NOT NULL,
    options        text NOT NULL,
    given          text NOT NULL,
    hash           bytea NOT NULL,                     -- SHA-256 of the canonical definition: tells a repeat from a change
    revision       integer NOT NULL DEFAULT 1,         -- grows with every change of a person's or a program's
    -- Why it does not fire: its expression or zone cannot be read. Looked at again every minute.
    error          text,
    error_at       timestamptz,
    fired          bigint NOT NULL DEFAULT 0,
    skipped        bigint NOT NULL DEFAULT 0,          -- instants at which an earlier task had not ended
    missed         bigint NOT NULL DEFAULT 0,          -- instants that passed while nothing fired, and that were not caught up
    key_id         text COLLATE "C",                   -- who changed it last
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (project, owner, name),
    CONSTRAINT one_rule CHECK ((cron IS NULL) <> (every_seconds IS NULL) AND (cron IS NULL) = (time_zone IS NULL))
);
-- Whether two schedules are due at the same instants, but for where they stand.
CREATE FUNCTION same_rule(a schedules, b schedules) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN (a.cron, a.time_zone, a.every_seconds) IS NOT DISTINCT FROM (b.cron, b.time_zone, b.every_seconds);

CREATE INDEX schedules_due ON schedules (next_due_at) WHERE paused_at IS NULL AND error IS NULL AND next_due_at IS NOT NULL;
CREATE INDEX schedules_error ON schedules (error_at) WHERE error IS NOT NULL;
CREATE INDEX schedules_zone ON schedules (time_zone) WHERE error IS NULL AND time_zone IS NOT NULL;

-- One row per due instant that was dealt with, kept beyond its schedule: whatever the clocks of those who fire say, whether a
-- schedule was removed and made again meanwhile, or time went back, an instant is dealt with once.
CREATE TABLE firings (
    project  text COLLATE "C" NOT NULL,
    owner    text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    due_at   timestamptz NOT NULL,
    at       timestamptz NOT NULL,
    outcome  text COLLATE "C" NOT NULL CHECK (outcome IN ('fired', 'skipped', 'missed', 'refused')),
    task_id  uuid,
    missed   integer NOT NULL DEFAULT 0,               -- instants before this one that were passed over with it
    PRIMARY KEY (project, owner, name, due_at),
    CHECK ((outcome = 'fired') = (task_id IS NOT NULL))
);
CREATE INDEX firings_at ON firings (at);

-- When schedules were last looked at: tells what was missed from what is merely late.
ALTER TABLE service ADD COLUMN ticked_at timestamptz;

-- 'previous': an earlier task of the same schedule has not ended. Every row of before fits: none is read to prove it.
ALTER TABLE tasks DROP CONSTRAINT tasks_hold_check,
    ADD CONSTRAINT tasks_hold_check CHECK (hold IN ('due', 'concurrency', 'previous')) NOT VALID;
CREATE INDEX tasks_previous ON tasks (project, type, schema_version, pool, created_at, id) WHERE status = 'queued' AND hold = 'previous';
-- The tasks of a schedule that have not ended, which are few.
CREATE INDEX tasks_scheduled ON tasks (project, schedule_name, coalesce(schedule_owner, ''), created_at, id)
    WHERE schedule_name IS NOT NULL AND finished_at IS NULL;
