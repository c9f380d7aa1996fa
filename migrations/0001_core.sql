-- The core schema: tasks and their journal are the truth; all else is authority (keys), presence (instances) or bookkeeping.
-- Identifiers are COLLATE "C" so that equality and order are by code point everywhere. Inputs, results and failures are
-- text, not jsonb: values must come back exactly as sent (big integers, \u0000, key order, number text).

-- The one clock. Tests replace this function in their own database to move time; nothing else decides what time it is.
-- Read it as a scalar sub-select, `(SELECT app_now())`: once per statement, and usable as an index condition.
CREATE FUNCTION app_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED
    RETURN clock_timestamp();

-- An instant as every view shows it, whatever the session's time zone.
CREATE FUNCTION rfc3339(at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- Ends a transaction from inside a statement: the pipeline rolls back as a whole and the caller reads `message` as the reason.
CREATE FUNCTION refuse(message text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'IL001', MESSAGE = message;
END $$;

CREATE TABLE service (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch      integer NOT NULL DEFAULT 1,      -- grows when a database is restored; lease tokens name it
    swept_at   timestamptz,                     -- last finished sweep
    retained_at timestamptz,                    -- last finished retention run
    rolled_up_to timestamptz                    -- roll_ups are final before this instant
);
INSERT INTO service DEFAULT VALUES;

CREATE TABLE projects (
    name            text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    require_worker  text CHECK (require_worker IN ('registered', 'online')),
    paused_at       timestamptz,
    resumed_at      timestamptz,
    submits_per_second double precision CHECK (submits_per_second > 0),  -- of each key of the project; null: no limit
    submits_burst   integer CHECK (submits_burst >= 1),
    idempotency_key text COLLATE "C" UNIQUE,
    created_at      timestamptz NOT NULL DEFAULT app_now()
);

CREATE TABLE keys (
    id              text COLLATE "C" PRIMARY KEY,          -- the public part of the key
    project         text COLLATE "C" REFERENCES projects,  -- null for admin keys only
    kind            text NOT NULL CHECK (kind IN ('task-producer', 'task-worker', 'operator', 'metrics', 'admin')),
    name            text NOT NULL,
    secret_hash     bytea NOT NULL,
    types           text[] COLLATE "C",
    pools           text[] COLLATE "C",
    worker_ids      text[] COLLATE "C",
    may_schedule    boolean NOT NULL DEFAULT false,
    idempotency_key text COLLATE "C",
    request_hash    bytea,
    created_by      text COLLATE "C",
    created_at      timestamptz NOT NULL DEFAULT app_now(),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    CHECK ((kind = 'admin') = (project IS NULL))
);
CREATE UNIQUE INDEX keys_idempotency ON keys (coalesce(project, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX keys_list ON keys (project, created_at, id);

CREATE TABLE tasks (
    id                uuid PRIMARY KEY,
    project           text COLLATE "C" NOT NULL,
    type              text COLLATE "C" NOT NULL,
    schema_version    integer NOT NULL CHECK (schema_version >= 1),
    pool              text COLLATE "C" NOT NULL,
    status            text COLLATE "C" NOT NULL
                      CHECK (status IN ('queued', 'running', 'waiting', 'outcome-unknown', 'succeeded', 'failed', 'cancelled')),
    -- Why a queued task is outside the claim's index: not due yet, or its concurrency key is full. Null: ready.
    hold              text COLLATE "C" CHECK (hold IN ('due', 'concurrency')),
    priority          smallint NOT NULL CHECK (priority BETWEEN -100 AND 100),
    input             text NOT NULL,
    result            text,
    failure           text,
    progress          text,
    tags              jsonb,
    trace             text,
    idempotency_key   text COLLATE "C",
    concurrency_key   text COLLATE "C",
    concurrency_limit integer CHECK (concurrency_limit >= 1),
    submitted         text,                            -- the policy fields of the submit, as JSON: a rerun starts from them
    -- Policy: null until the first claim fills in the handler's value or the protocol default.
    max_attempts          integer CHECK (max_attempts >= 1),
    initial_delay_seconds double precision,
    multiplier            double precision,
    max_delay_seconds     double precision,
    jitter                double precision,
    lease_seconds         double precision,
    timeout_seconds       double precision,
    start_deadline_seconds double precision,
    start_deadline_at     timestamptz,
    created_at        timestamptz NOT NULL,
    due_at            timestamptz NOT NULL,
    started_at        timestamptz,
    finished_at       timestamptz,
    attempts          integer NOT NULL DEFAULT 0,      -- counted ends only
    releases          smallint NOT NULL DEFAULT 0,     -- releases in a row; the 101st counts as an attempt
    cancel_requested  boolean NOT NULL DEFAULT false,
    rerun_of          uuid,
    parent_id         uuid,
    schedule_owner    text COLLATE "C",
    schedule_name     text COLLATE "C",
    effect_scope      uuid NOT NULL,
    journal_seq       integer NOT NULL DEFAULT 1,
    -- The latest attempt. It stays here after its expiry, so that a late report can still be believed; attempt_ended says
    -- that nothing of it will be believed any more.
    attempt_id        uuid,
    fence             integer NOT NULL DEFAULT 0,
    token_hash        bytea,
    attempt_ended     boolean NOT NULL DEFAULT false,
    attempt_expired   boolean NOT NULL DEFAULT false,  -- its expiry was counted; a recovery takes the count back
    attempt_reported  boolean NOT NULL DEFAULT false,  -- something came from it: a claim given back unseen may not take it
    worker_id         text COLLATE "C",
    instance_id       text COLLATE "C",
    claim_id          text COLLATE "C",
    effect_safety     text COLLATE "C" CHECK (effect_safety IN ('pure', 'idempotent', 'non-idempotent')),
    reconciles        boolean NOT NULL DEFAULT false,
    attempt_started_at timestamptz,
    lease_expires_at  timestamptz,
    deadline_at       timestamptz,
    log_seq           bigint NOT NULL DEFAULT 0,
    log_lines         integer NOT NULL DEFAULT 0,
    log_bytes         integer NOT NULL DEFAULT 0,
    journalled_at     timestamptz,                     -- last progress or log event of this attempt
    CONSTRAINT settled_has_finished CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT running_has_lease CHECK (status <> 'running' OR
        (attempt_id IS NOT NULL AND lease_expires_at IS NOT NULL AND token_hash IS NOT NULL AND NOT attempt_ended)),
    CONSTRAINT only_queued_holds CHECK (hold IS NULL OR status = 'queued'),
    CONSTRAINT key_has_limit CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- The claim's index: ready work only. Settled, delayed and key-blocked rows cost it nothing.
CREATE INDEX tasks_ready ON tasks (project, type, schema_version, pool, priority DESC, due_at, id)
    WHERE status = 'queued' AND hold IS NULL;
CREATE INDEX tasks_due ON tasks (project, type, schema_version, pool, due_at) WHERE status = 'queued' AND hold = 'due';
CREATE INDEX tasks_blocked ON tasks (project, concurrency_key, type, schema_version, pool, concurrency_limit, priority DESC, due_at, id)
    WHERE status = 'queued' AND hold = 'concurrency';
CREATE INDEX tasks_key_ready ON tasks (project, concurrency_key)
    WHERE status = 'queued' AND hold IS NULL AND concurrency_key IS NOT NULL;
CREATE INDEX tasks_ready_keyed ON tasks (project, type, schema_version, pool, priority DESC, due_at, id)
    WHERE status = 'queued' AND hold IS NULL AND concurrency_key IS NOT NULL;
-- Running rows are few: the lease's end stays out of every index, so that a renewal is a HOT update.
CREATE INDEX tasks_running ON tasks (project, type, schema_version, pool) WHERE status = 'running';
CREATE INDEX tasks_running_key ON tasks (project, concurrency_key) WHERE status = 'running' AND concurrency_key IS NOT NULL;
CREATE INDEX tasks_claim ON tasks (project, instance_id, claim_id) WHERE status IN ('running', 'queued', 'outcome-unknown') AND claim_id IS NOT NULL;
CREATE INDEX tasks_start_deadline ON tasks (start_deadline_at)
    WHERE status = 'queued' AND started_at IS NULL AND start_deadline_at IS NOT NULL;
-- An expression, so that only the list can use it: while the table is new the planner cannot tell indexes apart, and a kept plan
-- would look up a task by reading its whole project.
CREATE INDEX tasks_list ON tasks ((project || ''), created_at, id);
CREATE INDEX tasks_attention ON tasks (project, status, created_at, id)
    WHERE status IN ('failed', 'cancelled', 'outcome-unknown', 'waiting');
CREATE INDEX tasks_finished ON tasks (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tasks_key_list ON tasks (project, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_parent ON tasks (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_rerun ON tasks (rerun_of) WHERE rerun_of IS NOT NULL;
CREATE INDEX tasks_tags ON tasks USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL;

CREATE TABLE journal (
    task_id         uuid NOT NULL,
    seq             integer NOT NULL,
    at              timestamptz NOT NULL,
    kind            text COLLATE "C" NOT NULL CHECK (kind IN ('submitted', 'claimed', 'progress', 'log', 'step', 'lease-expired',
        'lease-recovered', 'released', 'retry-scheduled', 'suspended', 'signalled', 'resumed', 'cancel-requested', 'steps-orphaned',
        'succeeded', 'failed', 'cancelled', 'outcome-unknown', 'resolved', 'late-report')),
    attempt_id      uuid,
    data            text NOT NULL DEFAULT '{}',
    -- Shown in no view: which attempt this event ended, its token, and the report that it took, so that a repeat of that
    -- report and a late one can be told apart for as long as the task is kept.
    ended_attempt   uuid,
    token_hash      bytea,
    report_hash     bytea,
    PRIMARY KEY (task_id, seq)
);
CREATE INDEX journal_ended ON journal (task_id, ended_attempt) WHERE ended_attempt IS NOT NULL;

CREATE TABLE idempotency (
    project      text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    task_id      uuid NOT NULL,
    hash         bytea NOT NULL,      -- SHA-256 of the canonical request
    version      smallint NOT NULL,   -- of the canonical form
    fields       text NOT NULL,       -- {"field": short hash}, so that a conflict can name the first field that differs
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (project, key)
);
CREATE INDEX idempotency_expires ON idempotency (expires_at);
CREATE INDEX idempotency_task ON idempotency (task_id);

-- Locked to count the holders of a key; holds no count itself, so nothing can drift. `locked_by` is the call that holds the
-- lock: a later statement of the same transaction trusts its count for those keys only.
CREATE TABLE concurrency_keys (
    project   text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    locked_by uuid,
    most      integer CHECK (most >= 0),               -- an operator's limit: the smaller of it and the task's own counts
    PRIMARY KEY (project, key)
);

CREATE TABLE instances (
    project      text COLLATE "C" NOT NULL,
    worker_id    text COLLATE "C" NOT NULL,
    instance_id  text COLLATE "C" NOT NULL,
    pool         text COLLATE "C" NOT NULL,
    slots        integer NOT NULL DEFAULT 1,
    serves       text[] COLLATE "C" NOT NULL DEFAULT '{}',   -- 'group/name@version'
    draining     boolean NOT NULL DEFAULT false,             -- the instance said so
    drain_requested boolean NOT NULL DEFAULT false,          -- an operator said so
    told_seconds double precision NOT NULL DEFAULT 5,        -- the poll interval it was last told
    empty_claims integer NOT NULL DEFAULT 0,                 -- in a row; stretches the interval
    host         text,
    build        text COLLATE "C",
    sdk          text,
    registered   boolean NOT NULL DEFAULT false,
    started_at   timestamptz NOT NULL DEFAULT app_now(),
    last_seen    timestamptz NOT NULL DEFAULT app_now(),
    ended_at     timestamptz,
    PRIMARY KEY (project, worker_id, instance_id)
) WITH (fillfactor = 50);
CREATE INDEX instances_seen ON instances (project, last_seen);

CREATE TABLE claims (
    project     text COLLATE "C" NOT NULL,
    worker_id   text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    claim_id    text COLLATE "C" NOT NULL,
    call        uuid NOT NULL,        -- the request that made the row: only that one may lease
    released    boolean NOT NULL DEFAULT false,
    gave_back   text,                 -- [[attempt, status]] that its release gave back
    at          timestamptz NOT NULL,
    PRIMARY KEY (project, worker_id, instance_id, claim_id)
);
CREATE INDEX claims_at ON claims (at);

CREATE TABLE worker_ids (
    project       text COLLATE "C" NOT NULL,
    worker_id     text COLLATE "C" NOT NULL,
    pool          text COLLATE "C" NOT NULL,
    slots         integer NOT NULL,
    build         text COLLATE "C",
    sdk           text,
    host          text,
    instance_id   text COLLATE "C" NOT NULL,
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (project, worker_id)
);

CREATE TABLE handlers (
    project        text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    worker_id      text COLLATE "C" NOT NULL,
    pool           text COLLATE "C" NOT NULL,
    effect_safety  text COLLATE "C" NOT NULL CHECK (effect_safety IN ('pure', 'idempotent', 'non-idempotent')),
    reconciles     boolean NOT NULL DEFAULT false,
    slots          integer,
    description    text,
    input_schema   text,
    result_schema  text,
    max_attempts          integer,
    initial_delay_seconds double precision,
    multiplier            double precision,
    max_delay_seconds     double precision,
    jitter                double precision,
    timeout_seconds       double precision,
    lease_seconds         double precision,
    start_deadline_seconds double precision,
    PRIMARY KEY (project, type, schema_version, worker_id)
);
CREATE INDEX handlers_worker ON handlers (project, worker_id);

-- Every type@version that was ever registered: answers "nobody ever registered it" after its handlers are gone.
CREATE TABLE task_types (
    project        text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    first_registered_at timestamptz NOT NULL,
    PRIMARY KEY (project, type, schema_version)
);

-- Types that nobody may claim for now; their tasks stay where they are in the claim's index.
CREATE TABLE pauses (
    project        text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    paused_at      timestamptz,                        -- null: resumed
    resumed_at     timestamptz,                        -- waits for a worker are counted from here
    PRIMARY KEY (project, type, schema_version)
);

CREATE TABLE roll_ups (
    project        text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    minute         timestamptz NOT NULL,
    succeeded      integer NOT NULL,
    failed         integer NOT NULL,
    cancelled      integer NOT NULL,
    wait_p50       double precision, wait_p95 double precision,   -- seconds from due to first start
    run_p50        double precision, run_p95 double precision,    -- seconds from last start to end
    PRIMARY KEY (project, type, schema_version, minute)
);
CREATE INDEX roll_ups_minute ON roll_ups (minute);

-- What is left of a key's allowance of submits, where its project limits them.
CREATE TABLE allowances (
    key_id text COLLATE "C" PRIMARY KEY,
    left_over double precision NOT NULL,
    at     timestamptz NOT NULL
);

-- First answers of calls that would do their work twice (bulk), kept for a day under their idempotency key.
CREATE TABLE answers (
    project text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    hash    bytea NOT NULL,
    answer  text NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (project, key)
);
CREATE INDEX answers_at ON answers (at);

-- Each opens one stream once. Deleted when used; those that nobody used go with later ones.
CREATE TABLE tickets (
    hash       bytea PRIMARY KEY,                      -- SHA-256 of the ticket
    key_id     text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX tickets_expires ON tickets (expires_at);

CREATE TABLE audit (
    id      uuid PRIMARY KEY,
    project text COLLATE "C",
    at      timestamptz NOT NULL,
    key_id  text COLLATE "C",
    action  text COLLATE "C" NOT NULL,
    target  text COLLATE "C",
    detail  text NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_list ON audit (project, at, id);

-- Seconds before counted attempt n + 1. The exponent is bounded before the power is taken, so no n overflows; jitter only
-- takes off, so the cap holds with it.
CREATE FUNCTION backoff_seconds(n integer, initial_delay double precision, multiplier double precision, max_delay double precision,
                                jitter double precision, chance double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE
    RETURN (CASE WHEN initial_delay <= 0 THEN 0
                 WHEN (n - 1) * ln(multiplier) > ln(greatest(max_delay, 1e-9) / initial_delay) THEN max_delay
                 ELSE least(max_delay, initial_delay * power(multiplier, n - 1)) END) * (1 - jitter * chance);

CREATE FUNCTION safe_to_repeat(effect_safety text, reconciles boolean) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN effect_safety IN ('pure', 'idempotent') OR reconciles;

-- How an attempt ends, as one table: what was said of it (report, release, expiry) and what is known of it decide the task's
-- next status, and the failure code where it is not the handler's own. `counts`: the attempt is counted. The first rule that
-- applies decides.
--   cancelled   past its deadline is a time-out, retried like 'retryable' where that is safe; unasked and in time: 'stopped'
--   released    past its deadline counts as 'cancelled'
-- Returns a table of one row (not OUT parameters) so that the planner inlines it: called per row it would cost 0.4 ms each.
CREATE FUNCTION attempt_end(said text, safe boolean, started boolean, cancel boolean, overdue boolean, attempts_left boolean)
RETURNS TABLE (status text, code text, counts boolean) LANGUAGE sql IMMUTABLE ROWS 1
BEGIN ATOMIC
    SELECT split_part(e.rule, ' ', 1), nullif(split_part(e.rule, ' ', 2), '-'), split_part(e.rule, ' ', 3) = 'counts'
    FROM (SELECT CASE
        --   what was said                                     and                                     status, code, counted
        WHEN d.s = 'succeeded'                                                                    THEN 'succeeded - -'
        WHEN d.s = 'failed'                                                                       THEN 'failed - -'
        WHEN d.s = 'unknown'                                                                      THEN 'outcome-unknown - -'
        WHEN d.s = 'stopped'                                                                      THEN 'failed CANCELLED_BY_HANDLER -'
        WHEN d.s = 'retryable' AND cancel                                                         THEN 'cancelled - counts'
        WHEN d.s = 'retryable' AND NOT safe                                                       THEN 'failed RETRY_NOT_SAFE counts'
        WHEN d.s = 'cancelled' AND cancel                                                         THEN 'cancelled - -'
        WHEN d.s = 'cancelled' AND NOT safe                                                       THEN 'failed ATTEMPT_TIMEOUT counts'
        WHEN d.s = 'released' AND (NOT started OR safe) AND cancel                                THEN 'cancelled - -'
        WHEN d.s = 'released' AND (NOT started OR safe)                                           THEN 'queued - -'
        WHEN d.s = 'released'                                                                     THEN 'outcome-unknown RELEASED_UNSAFE -'
        WHEN d.s = 'expired' AND NOT safe AND overdue                                             THEN 'outcome-unknown ATTEMPT_TIMEOUT counts'
        WHEN d.s = 'expired' AND NOT safe                                                         THEN 'outcome-unknown LEASE_EXPIRED counts'
        WHEN d.s = 'expired' AND cancel                                                           THEN 'cancelled - counts'
        WHEN attempts_left                                                                        THEN 'queued - counts'
        ELSE 'failed ATTEMPTS_EXHAUSTED counts' END AS rule
        FROM (SELECT CASE WHEN said = 'released' AND overdue THEN 'cancelled'
                          WHEN said = 'cancelled' AND NOT cancel AND NOT overdue THEN 'stopped' ELSE said END AS s) d) e;
END;
