-- Tickets for one stream each. Called by tickets.py. A ticket's row is deleted when it is used, so that of any number of
-- uses, on any number of hosts, one finds it.

-- :: create
-- Old ones that nobody used are taken along, a few at a time.
WITH old AS (
    DELETE FROM tickets WHERE hash IN (
        SELECT hash FROM tickets WHERE expires_at < (SELECT app_now()) ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED)
)
INSERT INTO tickets (hash, key_id, path, expires_at)
VALUES (%(hash)s, %(key_id)s, %(path)s, (SELECT app_now()) + make_interval(secs => %(seconds)s))
RETURNING expires_at

-- :: redeem
WITH used AS (
    DELETE FROM tickets WHERE hash = %(hash)s RETURNING key_id, path, expires_at
)
SELECT k.id, k.project, k.kind FROM used JOIN keys k ON k.id = used.key_id
WHERE used.path = %(path)s AND used.expires_at > (SELECT app_now())
  AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > (SELECT app_now()))
