-- The index of dead letters, and what operators did with them. The DLQ topics are the truth: all of `letters` can be
-- rebuilt from them, from `desk_outcomes` and from `jobs`.

-- One row per record of a DLQ topic. All but the last three columns follow from the record alone.
create table letters (
    queue           text        not null,
    partition       integer     not null,
    "offset"        bigint      not null,
    job_id          uuid        not null,
    job_type        text        not null,
    tenant          text        not null,
    priority        text        not null,
    dialect         text        not null,  -- who wrote it: pipeline, spring, connect
    origin          text        not null,  -- of letters of others: the topic that their record came from
    malformed       boolean     not null,  -- it carries no job that could run
    hop             integer     not null,
    attempt         integer     not null,
    replays         integer     not null,
    reason          text        not null,
    error_class     text        not null,
    message         text        not null,  -- the start and the end of it
    schema          text        not null,  -- how the payload names the schema that it was written with
    first_topic     text        not null,
    first_partition integer     not null,
    first_offset    bigint      not null,
    last_topic      text        not null,
    last_partition  integer     not null,
    last_offset     bigint      not null,
    size            integer     not null,  -- bytes of the payload
    dead_at         timestamptz not null,
    state           text        not null check (state in (
        'open', 'replaying', 'replayed', 'parked', 'discarded', 'completed', 'cancelled', 'copy', 'expired'
    )),
    since           timestamptz,           -- when it came into this state; null: when the job died
    task            bigint,                -- which task of the desk brought it there
    primary key (queue, partition, "offset")
);

-- Only what is asked for all the time: each index costs a replay, which updates every row that it sends.
create index letters_job on letters (job_id);
create index letters_waiting on letters (dead_at, queue, partition, "offset", state) where state in ('open', 'parked');
create index letters_in_hand on letters (task) where state = 'replaying';

-- Below `complete_to` every record of the partition is in `letters`; workers write theirs in any order, so the highest
-- offset says nothing. `begins_at` is where the partition began when it was last looked at: before it all records are gone.
create table letter_positions (
    queue       text    not null,
    partition   integer not null,
    begins_at   bigint  not null,
    complete_to bigint  not null,
    primary key (queue, partition)
);

-- What operators did: who, why, with which letters.
create table desk_tasks (
    id          bigint      generated always as identity primary key,
    kind        text        not null check (kind in ('replay', 'park', 'discard', 'reopen', 'edit')),
    state       text        not null check (state in ('running', 'paused', 'done', 'failed')),
    who         text        not null,
    why         text        not null,
    selection   jsonb       not null,
    options     jsonb       not null,
    ends        jsonb       not null,  -- queue -> partition -> offset: letters from there on are not meant
    cursor      jsonb       not null default '{}',  -- the same: letters before it are dealt with
    counts      jsonb       not null default '{}',
    in_doubt    jsonb       not null default '{}',  -- topic -> partition -> its end before the batch in hand was sent
    created_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    old_value   bytea,                 -- of an edit: the payload before, and after
    new_value   bytea
);

-- What came of each letter that a task moved. The letter's identity is repeated: a topic may be deleted and made anew.
create table desk_outcomes (
    task             bigint      not null,
    queue            text        not null,
    partition        integer     not null,
    "offset"         bigint      not null,
    job_id           uuid        not null,
    hop              integer     not null,
    state            text        not null,  -- what the letter's became
    detail           text        not null,
    at               timestamptz not null,
    target_topic     text        not null,  -- where a replay wrote it; empty if nowhere
    target_partition integer     not null,
    target_offset    bigint      not null,
    primary key (queue, partition, "offset", task)
);

-- A task in hand is locked by the session that works on it, so that it is free at once when its process dies.
create function desk_task_key(task bigint) returns bigint
    language sql stable
as $$
    select hashtextextended(current_schema() || '.desk_task.' || task, 0)
$$;

create function desk_task_is_held(task bigint) returns boolean
    language sql volatile
as $$
    select exists (
        select from pg_locks
        where locktype = 'advisory' and granted and objsubid = 1
            and database = (select oid from pg_database where datname = current_database())
            and ((classid::bigint << 32) | objid::bigint) = desk_task_key(task)
    )
$$;

-- Whether a letter that is put into the index again stays in the state that it has: it is the same letter, and either
-- it was dealt with or nothing is known of it that would resolve it.
create function letter_stays(known letters, put letters) returns boolean
    language sql immutable
as $$
    select (known.job_id, known.hop) = (put.job_id, put.hop) and (known.state <> 'open' or put.state = 'open')
$$;
