-- Keys and projects. Called by keys.py; no row here is locked for longer than its own statement.

-- :: find
SELECT id, project, kind, secret_hash, types, pools, worker_ids, may_schedule,
       revoked_at IS NOT NULL AS revoked, coalesce(expires_at <= (SELECT app_now()), false) AS expired,
       EXISTS (SELECT FROM projects p WHERE p.name = keys.project AND p.submits_per_second IS NOT NULL) AS rated
FROM keys WHERE id = %(id)s

-- :: insert
WITH made AS (
    INSERT INTO keys (id, project, kind, name, secret_hash, types, pools, worker_ids, may_schedule, idempotency_key, request_hash,
                      created_by, created_at, expires_at)
    SELECT %(id)s, %(project)s, %(kind)s, %(name)s, %(secret_hash)s, %(types)s, %(pools)s, %(worker_ids)s, %(may_schedule)s,
           %(idempotency_key)s, %(request_hash)s, %(created_by)s, (SELECT app_now()), %(expires_at)s
    WHERE CASE WHEN %(project)s::text IS NOT NULL AND NOT EXISTS (SELECT FROM projects WHERE name = %(project)s)
               THEN refuse('NOT_FOUND') ELSE true END
    ON CONFLICT (coalesce(project, ''), idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING *
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, project, created_at, created_by, 'key-created', id FROM made
)
SELECT * FROM made

-- :: find_by_idempotency_key
SELECT * FROM keys WHERE coalesce(project, '') = %(project)s AND idempotency_key = %(idempotency_key)s

-- :: list
SELECT * FROM keys
WHERE project = %(project)s
  AND (%(after_at)s::timestamptz IS NULL OR (created_at, id) < (%(after_at)s, %(after_id)s))
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s

-- :: revoke
WITH found AS MATERIALIZED (
    SELECT id, revoked_at FROM keys WHERE id = %(id)s AND project = %(project)s FOR UPDATE
), changed AS (
    UPDATE keys k SET revoked_at = coalesce(k.revoked_at, (SELECT app_now()))
    FROM found WHERE k.id = found.id
    RETURNING k.*, found.revoked_at IS NULL AS changed
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, project, (SELECT app_now()), %(by)s, 'key-revoked', id FROM changed WHERE changed
)
SELECT * FROM changed

-- :: rotate
-- A new key with the same rights; the old one lives on for the overlap at most. No row back: its idempotency key made one
-- before, which a statement of its own has to find: a call that waited for the row does not see what was made meanwhile.
WITH old AS MATERIALIZED (
    SELECT k.* FROM keys k WHERE k.id = %(id)s AND k.project = %(project)s FOR UPDATE
), made AS (
    INSERT INTO keys (id, project, kind, name, secret_hash, types, pools, worker_ids, may_schedule, idempotency_key, request_hash,
                      created_by, created_at)
    SELECT %(new_id)s, old.project, old.kind, old.name, %(secret_hash)s, old.types, old.pools, old.worker_ids, old.may_schedule,
           %(idempotency_key)s, %(request_hash)s, %(by)s, (SELECT app_now())
    FROM old WHERE CASE WHEN old.revoked_at IS NOT NULL THEN refuse('REVOKED')
                        WHEN old.expires_at <= (SELECT app_now()) THEN refuse('EXPIRED') ELSE true END
    ON CONFLICT (coalesce(project, ''), idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING *
), ended AS (
    UPDATE keys k SET expires_at = least(k.expires_at, (SELECT app_now()) + make_interval(secs => %(overlap_seconds)s))
    FROM made WHERE k.id = %(id)s
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target, detail)
    SELECT %(audit_id)s, project, created_at, %(by)s, 'key-rotated', %(id)s, json_build_object('newKey', id)::text FROM made
)
SELECT * FROM made

-- :: insert_project
WITH made AS (
    INSERT INTO projects (name, idempotency_key, require_worker, created_at)
    VALUES (%(name)s, %(idempotency_key)s, %(require_worker)s, (SELECT app_now()))
    ON CONFLICT DO NOTHING
    RETURNING *
), noted AS (
    INSERT INTO audit (id, project, at, key_id, action, target)
    SELECT %(audit_id)s, name, created_at, %(by)s, 'project-created', name FROM made
)
SELECT * FROM made

-- :: find_project
SELECT * FROM projects WHERE name = %(name)s OR idempotency_key = %(idempotency_key)s
ORDER BY (idempotency_key IS NOT DISTINCT FROM %(idempotency_key)s) DESC LIMIT 1

-- :: projects
SELECT name, created_at, require_worker FROM projects
WHERE name > coalesce(%(after)s::text, '') ORDER BY name LIMIT %(limit)s
