-- Circuit breakers, and records that Kafka would not take.

-- One row per job type that ever failed, or per tenant of one where each has a breaker of its own; else the tenant is ''.
-- Written only when something changes or fails: never for a job that ends well.
create table breakers (
    job_type     text        not null,
    tenant       text        not null,
    state        text        not null default 'closed' check (state in ('closed', 'open', 'half_open')),
    reason       text        not null default '',
    changed_by   text        not null default '',  -- the worker or the person that made the last change of state
    changed_at   timestamptz not null default clock_timestamp(),
    opened       bigint      not null default 0,   -- how often
    streak       bigint      not null default 0,   -- failures in a row
    counted_from timestamptz not null default clock_timestamp(),  -- the window that these were counted in
    runs         bigint      not null default 0,
    failed       bigint      not null default 0,
    ended        bigint      not null default 0,
    dead         bigint      not null default 0,
    retry_at     timestamptz,                      -- when an open one may be probed; infinity: only a person closes it
    prober       text        not null default '',  -- the worker whose probe is under way
    probe_until  timestamptz,
    touched_at   timestamptz not null default clock_timestamp(),
    primary key (job_type, tenant)
) with (fillfactor = 50);

-- The record of a job that was too large for the topic that it should have gone to. A small letter in the DLQ refers to it.
create table parked (
    job_id        uuid        not null,
    hop           integer     not null,  -- of the record, and of its letter
    parked_at     timestamptz not null default clock_timestamp(),
    job_type      text        not null,
    tenant        text        not null,
    queue         text        not null,
    reason        text        not null,
    topic         text        not null,
    partition     integer     not null,
    "offset"      bigint      not null,
    written_at    timestamptz not null,  -- the record's timestamp
    key           bytea,
    value         bytea,
    header_names  bytea[]     not null,
    header_values bytea[]     not null,
    primary key (job_id, hop)
);
