-- What workers do for the tables now and then, one of them at a time: how far they are.
create table upkeep (
    task    text        not null primary key,
    next_at timestamptz not null,           -- not before
    page    integer     not null default 0, -- of the table that is gone through
    done    bigint      not null default 0  -- rows deleted in this round
);

insert into upkeep (task, next_at) values ('prune', clock_timestamp());
