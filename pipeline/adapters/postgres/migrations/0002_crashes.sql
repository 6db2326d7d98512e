-- Jobs that may kill the process they run in.

-- Null: nothing is held against the job. Else it is a suspect, because it was running on a worker that died, and this is how
-- often the process died in which it ran alone. It stays a suspect for good. A job that was never one has no byte of this:
-- its row has a map of nulls anyhow.
alter table jobs add column crashes smallint;

-- Whether a worker left in order: what it held was not running any more. Volatile for the same reason as worker_is_alive.
create function worker_left(wanted text) returns boolean
    language plpgsql volatile
as $$
begin
    return exists (select from workers where worker_id = wanted and left_at is not null);
end
$$;
