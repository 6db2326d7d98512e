-- Statements about breakers; see queries.sql. The rules stand in pipeline.core.breaker, not here.

-- name: breakers_look
select
    extract(epoch from clock_timestamp())::float8,
    b.job_type, b.tenant, b.state, b.reason, b.changed_by, extract(epoch from b.changed_at)::float8, b.opened, b.streak,
    extract(epoch from b.counted_from)::float8, b.runs, b.failed, b.ended, b.dead,
    coalesce(extract(epoch from b.retry_at), 0)::float8, b.prober, coalesce(extract(epoch from b.probe_until), 0)::float8
from (select) as always
left join breakers as b
    on b.state <> 'closed' or b.streak > 0 or b.failed > 0 or b.dead > 0
    or b.changed_at > clock_timestamp() - interval '1 minute'

-- name: breakers_ensure
-- In one order everywhere, so that no two of these can deadlock.
insert into breakers (job_type, tenant)
select job_type, tenant from unnest(%(job_type)s::text[], %(tenant)s::text[]) as r (job_type, tenant)
order by job_type, tenant
on conflict do nothing

-- name: breakers_lock
select
    b.job_type, b.tenant, b.state, b.reason, b.changed_by, extract(epoch from b.changed_at)::float8, b.opened, b.streak,
    extract(epoch from b.counted_from)::float8, b.runs, b.failed, b.ended, b.dead,
    coalesce(extract(epoch from b.retry_at), 0)::float8, b.prober, coalesce(extract(epoch from b.probe_until), 0)::float8
from breakers as b
where (b.job_type, b.tenant) in (select * from unnest(%(job_type)s::text[], %(tenant)s::text[]))
order by b.job_type, b.tenant
for update

-- name: breakers_now
-- Asked once the locks are held: a step must not go back in time behind one that it waited for.
select extract(epoch from clock_timestamp())::float8

-- name: breakers_write
update breakers as b set
    state = r.state, reason = r.reason, changed_by = r.changed_by, changed_at = to_timestamp(r.changed_at), opened = r.opened,
    streak = r.streak, counted_from = to_timestamp(r.counted_from), runs = r.runs, failed = r.failed, ended = r.ended,
    dead = r.dead, retry_at = to_timestamp(r.retry_at), prober = r.prober, probe_until = to_timestamp(r.probe_until),
    touched_at = clock_timestamp()
from unnest(
    %(job_type)s::text[], %(tenant)s::text[], %(state)s::text[], %(reason)s::text[], %(by)s::text[], %(changed_at)s::float8[],
    %(opened)s::bigint[], %(streak)s::bigint[], %(counted_from)s::float8[], %(runs)s::bigint[], %(failed)s::bigint[],
    %(ended)s::bigint[], %(dead)s::bigint[], %(retry_at)s::float8[], %(prober)s::text[], %(probe_until)s::float8[]
) as r (
    job_type, tenant, state, reason, changed_by, changed_at, opened, streak, counted_from, runs, failed, ended, dead,
    retry_at, prober, probe_until
)
where b.job_type = r.job_type and b.tenant = r.tenant

-- name: breakers_forget
with gone as (
    delete from breakers
    where state = 'closed' and touched_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    returning 1
)
select count(*) from gone
