-- Whether a task lies within a narrowed worker key: `narrowing` is one pattern over type, pool and worker id, each on a line (made by
-- the service from the key's globs); none takes everything. Plain expressions, which the planner puts in the place of the call.
CREATE FUNCTION within_narrowing(narrowing text, type text, pool text, worker_id text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN narrowing IS NULL OR (type || E'\n' || pool || E'\n' || worker_id) ~ narrowing;

-- What is kept of the lease token of the n-th attempt of a claim, whose secret is `seed`.
CREATE FUNCTION lease_token_hash(seed text, n bigint) RETURNS bytea LANGUAGE sql STABLE
RETURN sha256(encode(sha256(convert_to(seed || n, 'UTF8')), 'hex')::bytea);
