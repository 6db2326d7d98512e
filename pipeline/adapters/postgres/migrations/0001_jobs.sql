-- Jobs, the runs that did not complete, and workers.
-- Names are unqualified: the connection's search_path says which schema holds them.

-- One row per job id, written twice for a job that completes: claimed, then settled.
--
-- No index but the primary key, and none to come on a column that changes: every update then stays in its page (HOT) and
-- touches no index. A whole batch is claimed in one transaction and settled in one, so a page needs room for two versions
-- of each of its rows: hence the fillfactor. At 75 two thirds of the updates left their page, at 45 none did, and
-- settling took half the time, in a smaller table.
create table jobs (
    job_id              uuid        not null,
    token               bigint      not null,  -- fencing token: higher for each claim
    enqueued_at         timestamptz not null,
    claimed_at          timestamptz not null,
    started_at          timestamptz,           -- the last run; null until it is settled
    finished_at         timestamptz,
    due_at              timestamptz,           -- when a retrying job may run
    "offset"            bigint      not null,  -- topic, partition, offset: the record that was claimed
    partition           integer     not null,
    attempt             integer     not null,
    hop                 integer     not null,  -- how often the job was published onward
    state               text        not null check (state in ('running', 'retrying', 'completed', 'dead', 'cancelled')),
    worker_id           text        not null,  -- who runs it, or ran it last
    topic               text        not null,
    job_type            text        not null,
    tenant              text        not null,
    queue               text        not null,
    reason              text        not null default '',
    -- What the row was before its last claim: null for the first one.
    previous_state      text,
    previous_worker     text,
    previous_attempt    integer,
    previous_claimed_at timestamptz,
    primary key (job_id)
) with (fillfactor = 45);

-- One row per run that did not complete: failed, snoozed, dead, or lost with its worker. Never updated.
create table attempts (
    job_id        uuid        not null,
    token         bigint      not null,
    attempt       integer     not null,
    worker_id     text        not null,
    outcome       text        not null check (outcome in ('failed', 'snoozed', 'dead', 'lost')),
    started_at    timestamptz,
    finished_at   timestamptz,
    reason        text        not null default '',
    error_class   text        not null default '',
    error_message text        not null default '',
    stack         text        not null default '',
    primary key (job_id, token)
);

-- Counting the dead must not read all jobs.
create index attempts_dead on attempts (job_id, token) where outcome = 'dead';

-- One row per start of a worker process. It is alive until `alive_until` passes or it leaves.
create table workers (
    worker_id    text        not null primary key,
    host         text        not null,
    pid          integer     not null,
    queues       text[]      not null,
    started_at   timestamptz not null,
    heartbeat_at timestamptz not null,
    alive_until  timestamptz not null,
    left_at      timestamptz
) with (fillfactor = 50);

-- Volatile on purpose: each call sees what is committed by then. A claim waits for row locks, and by the snapshot that it
-- began with, a worker that registered or renewed meanwhile would look dead, and a job would be taken from under it.
create function worker_is_alive(wanted text) returns boolean
    language plpgsql volatile
as $$
begin
    return exists (
        select from workers where worker_id = wanted and alive_until > clock_timestamp() and left_at is null
    );
end
$$;
