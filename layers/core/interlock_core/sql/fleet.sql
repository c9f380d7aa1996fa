-- Who could run what: the online instances by type@version and pool; and, for what nobody online serves, the nearest
-- registered handlers; and what is paused. No locks. Called wherever a task is shown (its `waiting` reason).

-- :: state
WITH online AS MATERIALIZED (
    SELECT s.serves, i.pool, count(*) AS instances, count(*) FILTER (WHERE i.draining OR i.drain_requested) AS draining,
           sum(CASE WHEN i.draining OR i.drain_requested THEN 0 ELSE i.slots END)::integer AS slots,
           sum(CASE WHEN i.draining OR i.drain_requested THEN 0 ELSE (
               SELECT count(*) FROM tasks t WHERE t.project = i.project AND t.instance_id = i.instance_id AND t.claim_id IS NOT NULL
                 AND t.status = 'running' AND t.worker_id = i.worker_id) END)::integer AS used
    FROM instances i CROSS JOIN LATERAL unnest(i.serves) AS s(serves)
    WHERE i.project = %(project)s AND i.ended_at IS NULL AND s.serves = ANY(%(names)s)
      AND i.last_seen > (SELECT app_now()) - make_interval(secs => greatest(%(offline_seconds)s, 1.5 * i.told_seconds))
    GROUP BY 1, 2
), near AS MATERIALIZED (
    SELECT h.worker_id, h.type, h.schema_version, h.pool FROM handlers h
    WHERE h.project = %(project)s AND EXISTS (SELECT FROM unnest(%(names)s::text[]) AS n WHERE n NOT IN (SELECT serves FROM online))
      AND (lower(h.type) = ANY(%(folded)s) OR split_part(h.type, '/', 2) = ANY(%(last_parts)s) OR split_part(h.type, '/', 1) = ANY(%(first_parts)s))
    ORDER BY (lower(h.type) = ANY(%(folded)s)) DESC, h.type, h.schema_version DESC LIMIT 20
)
SELECT serves, pool, instances, draining, slots, used, NULL AS worker_id, NULL AS type, NULL::integer AS schema_version FROM online
UNION ALL
SELECT NULL, pool, NULL, NULL, NULL, NULL, worker_id, type, schema_version FROM near
UNION ALL  -- what is paused: of these types, or (no version) the project
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, y.type, y.schema_version FROM pauses y
WHERE y.project = %(project)s AND y.paused_at IS NOT NULL AND y.type || '@' || y.schema_version = ANY(%(names)s)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, p.name, NULL FROM projects p WHERE p.name = %(project)s AND p.paused_at IS NOT NULL
