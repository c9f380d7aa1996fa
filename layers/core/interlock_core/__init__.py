"""Interlock's service in one library.

The life of a task: a producer **submits** it (`tasks.submit`, `sql/submit.sql`): one row, queued, and one journal event. A
worker **claims** it (`claims.claim`, `sql/claim.sql`): the row becomes running, its fence grows by one, and the attempt gets
a lease and a secret token. The worker **renews** (`heartbeat.sql`) while it works and **completes** (`complete.sql`) with an
outcome; each report is believed only while its attempt is the current one. A lease that ends without a report is **expired**
(`expire.sql`): what is safe to repeat is queued again, what is not becomes `outcome-unknown` and says so. Whatever moves a
task writes its journal event in the same transaction, so that every status it ever had can be read back.

Reading order:

    states      the states and what moves them, as data
    submit      submitting                                → sql/submit
    tasks       reading, cancelling, resolving            → sql/tasks, cancel, resolve
    claims      claiming                                  → sql/claim, and expire, promote
    attempts    reports                                   → sql/heartbeat, complete, release
    leases      the scheduled sweep and retention         → sql/expire, promote, late_starts, wait_limit, sweep, retention
    admission   concurrency keys                          → sql/admit
    schedules   what is submitted by itself, and when     → sql/schedules, firings, previous
    workers     registrations and instances               → sql/workers
    keys        who is calling, and what they may do      → sql/keys
    fleet, overview, doctor, metrics    what people look at
    hints       "read the truth again", for the stream; `listen` receives them
    http        the edge, once for every function: keys, bodies, problem objects
    wire/       what comes in, validated (`rules`: of single fields; `fields`: by pydantic; `structs`: by msgspec); what goes out
    jsontext, canonical, reports        JSON that passes through exactly, and how two requests are compared
    db, pipeline, migrate               the only ones that speak to Postgres
    background, settings, errors, ids, testpoint
"""
