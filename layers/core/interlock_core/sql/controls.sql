-- What an operator sets: pauses, limits of concurrency keys, the rate of submits, and the trail of who did what.
-- Called by controls.py. Each statement is a transaction of its own; a repeat changes nothing and says so.

-- :: pause_type
WITH changed AS (
    INSERT INTO pauses (project, type, schema_version, paused_at) VALUES (%(project)s, %(type)s, %(schema_version)s, app_now())
    ON CONFLICT (project, type, schema_version) DO UPDATE SET paused_at = excluded.paused_at WHERE pauses.paused_at IS NULL
    RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'type-paused', %(name)s FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed

-- :: resume_type
WITH changed AS (
    UPDATE pauses SET paused_at = NULL, resumed_at = app_now()
    WHERE project = %(project)s AND type = %(type)s AND schema_version = %(schema_version)s AND paused_at IS NOT NULL RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'type-resumed', %(name)s FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed

-- :: pause_project
WITH changed AS (
    UPDATE projects SET paused_at = CASE WHEN %(paused)s THEN app_now() END, resumed_at = CASE WHEN %(paused)s THEN resumed_at ELSE app_now() END
    WHERE name = %(project)s AND (paused_at IS NOT NULL) <> %(paused)s RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, CASE WHEN %(paused)s THEN 'project-paused' ELSE 'project-resumed' END,
           %(project)s FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed

-- :: ready_groups
-- Groups with work that a resume lets go (a loose index scan), to hint at.
WITH RECURSIVE groups AS (
    (SELECT type, schema_version, pool FROM tasks WHERE project = %(project)s AND status = 'queued' AND hold IS NULL
     ORDER BY type, schema_version, pool LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT t.type, t.schema_version, t.pool FROM tasks t
        WHERE t.project = %(project)s AND t.status = 'queued' AND t.hold IS NULL
          AND (t.type, t.schema_version, t.pool) > (g.type, g.schema_version, g.pool)
        ORDER BY t.type, t.schema_version, t.pool LIMIT 1) n
)
SELECT type, schema_version, pool FROM groups LIMIT 1000

-- :: set_limit
WITH made AS (
    INSERT INTO concurrency_keys (project, key, most) VALUES (%(project)s, %(key)s, %(limit)s)
    ON CONFLICT (project, key) DO UPDATE SET most = excluded.most WHERE concurrency_keys.most IS DISTINCT FROM excluded.most
    RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'limit-set', %(key)s, json_build_object('limit', %(limit)s::integer)::text FROM made
)
SELECT EXISTS (SELECT FROM made) AS changed

-- :: limits
SELECT k.key, k.most, (SELECT count(*) FROM tasks t WHERE t.project = k.project AND t.concurrency_key = k.key AND t.status = 'running') AS held
FROM concurrency_keys k WHERE k.project = %(project)s AND (%(key)s::text IS NULL OR k.key = %(key)s) AND k.most IS NOT NULL
  AND (%(after)s::text IS NULL OR k.key > %(after)s)
ORDER BY k.key LIMIT %(limit)s

-- :: set_rate
WITH changed AS (
    UPDATE projects SET submits_per_second = %(per_second)s, submits_burst = %(burst)s
    WHERE name = %(project)s AND (submits_per_second, submits_burst) IS DISTINCT FROM (%(per_second)s::double precision, %(burst)s::integer) RETURNING 1
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, %(project)s, (SELECT app_now()), %(key_id)s, 'rate-set', %(project)s,
           json_build_object('perSecond', %(per_second)s::double precision, 'burst', %(burst)s::integer)::text FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed

-- :: rate
SELECT submits_per_second, submits_burst FROM projects WHERE name = %(project)s

-- :: spend
-- Takes `tasks` from a key's allowance, which grows by the rate up to the burst; no row back: not enough is left. Where the clock was
-- set back the allowance begins anew: else a key would be refused until the clock is where it was.
WITH clock AS MATERIALIZED (SELECT app_now() AS now),
rate AS MATERIALIZED (
    SELECT submits_per_second AS per_second, submits_burst AS burst FROM projects WHERE name = %(project)s AND submits_per_second IS NOT NULL
)
INSERT INTO allowances AS a (key_id, left_over, at)
SELECT %(key_id)s, rate.burst - %(tasks)s, clock.now FROM rate, clock WHERE rate.burst >= %(tasks)s
ON CONFLICT (key_id) DO UPDATE
    SET left_over = (SELECT CASE WHEN excluded.at < a.at - interval '1 second' THEN burst
                                 ELSE least(burst, a.left_over + greatest(extract(epoch FROM excluded.at - a.at), 0) * per_second) END FROM rate) - %(tasks)s,
        at = excluded.at
    WHERE (SELECT CASE WHEN excluded.at < a.at - interval '1 second' THEN burst
                       ELSE least(burst, a.left_over + greatest(extract(epoch FROM excluded.at - a.at), 0) * per_second) END FROM rate) >= %(tasks)s
RETURNING left_over

-- :: audit
SELECT id, at, key_id, action, target, detail FROM audit
WHERE project = %(project)s AND (%(after_at)s::timestamptz IS NULL OR (at, id) < (%(after_at)s, %(after_id)s::uuid))
ORDER BY at DESC, id DESC LIMIT %(limit)s

-- :: answer
SELECT hash, answer FROM answers WHERE project = %(project)s AND key = %(key)s AND at > (SELECT app_now()) - make_interval(secs => %(ttl)s)

-- :: enter
-- Takes the key of a call that works in parts: new, its day over, or left by a call like it that was cut. Its `answer` is then how far
-- that one came: what was there when the first one began is what the call is about. No row: the key names another call, one under
-- way, or one that was answered.
INSERT INTO answers (project, key, hash, answer, at)
SELECT %(project)s, %(key)s, %(hash)s, json_build_object('underWay', true, 'matched', 0, 'changed', 0, 'afterAt', rfc3339(now),
       'afterId', 'ffffffff-ffff-ffff-ffff-ffffffffffff')::text, now FROM app_now() AS now
ON CONFLICT (project, key) DO UPDATE
    SET hash = excluded.hash, at = excluded.at,
        answer = CASE WHEN answers.at <= excluded.at - make_interval(secs => %(ttl)s) THEN excluded.answer ELSE answers.answer END
    WHERE answers.at <= excluded.at - make_interval(secs => %(ttl)s)
       OR answers.hash = excluded.hash AND answers.at <= excluded.at - make_interval(secs => %(left_seconds)s)
          AND answers.answer::json ->> 'underWay' IS NOT NULL
RETURNING answer, at

-- :: advance
-- How far a call came, or its answer; refused where another took it over.
WITH moved AS (
    UPDATE answers SET answer = %(answer)s, at = greatest(app_now(), at + interval '1 microsecond')
    WHERE project = %(project)s AND key = %(key)s AND at = %(held)s RETURNING at
)
SELECT CASE WHEN NOT EXISTS (SELECT FROM moved) THEN refuse('TAKEN_OVER') END, (SELECT at FROM moved) AS at

-- :: let_go
-- A call that failed on its way: the next one like it goes on at once.
UPDATE answers SET at = at - make_interval(secs => %(left_seconds)s) WHERE project = %(project)s AND key = %(key)s AND at = %(held)s

-- :: forget
WITH old AS MATERIALIZED (
    SELECT ctid FROM answers WHERE at < (SELECT app_now()) - make_interval(secs => %(ttl)s) ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM answers a WHERE a.ctid = ANY(ARRAY(SELECT ctid FROM old)) RETURNING 1

-- :: note
INSERT INTO audit (id, project, at, key_id, action, target, detail)
VALUES (%(audit_id)s, %(project)s, app_now(), %(key_id)s, %(action)s, %(target)s, %(detail)s)
