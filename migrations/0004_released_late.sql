-- An attempt that was given back past its deadline, while its handler ran and may not be repeated: what it did is not known, and the
-- task says so, as it does before the deadline and when the lease ends. (The rest of the table is as it was.)
CREATE OR REPLACE FUNCTION attempt_end(said text, safe boolean, open boolean, started boolean, cancel boolean, overdue boolean, attempts_left boolean)
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
        FROM (SELECT CASE WHEN said = 'released' AND overdue AND (safe OR NOT started) THEN 'cancelled'
                          WHEN said = 'cancelled' AND NOT cancel AND NOT overdue THEN 'stopped' ELSE said END AS s) d) e;
END;

-- The form without `open`, which functions of the first release call while a deployment replaces them.
CREATE OR REPLACE FUNCTION attempt_end(said text, safe boolean, started boolean, cancel boolean, overdue boolean, attempts_left boolean)
RETURNS TABLE (status text, code text, counts boolean) LANGUAGE sql IMMUTABLE ROWS 1
BEGIN ATOMIC
    SELECT e.status, e.code, e.counts FROM attempt_end(said, safe, false, started, cancel, overdue, attempts_left) e;
END;
