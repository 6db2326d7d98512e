-- For transactions of handlers: ends one whose claim does not hold any more.
--
-- The completion of a job and COMMIT are sent together, so that a worker cannot be frozen between the two with the job's
-- row locked, which would hold up everybody who claims. So it must be the server that stops before the COMMIT.
create function claim_is_lost(job_id uuid, token bigint, current bigint) returns void
    language plpgsql
as $$
begin
    raise exception 'job %: the claim with token % does not hold any more, the row has token %', job_id, token, current
        using errcode = 'PL001';
end
$$;
