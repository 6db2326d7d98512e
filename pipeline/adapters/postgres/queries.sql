-- Every statement of the store. Those that take arrays read element i of each as one row; times in them are microseconds.
-- They rely on the session settings in session.py: only index scans and nested loops, planned once.

-- name: claim
-- Rules 1 to 3 of pipeline.core.claims: grants what may be granted and says nothing of the rest.
-- An existing row is locked before it is judged, so of two claims for one job the second sees what the first did.
-- A run that is taken over from another worker leaves a row in attempts. Which attempt it is the row may know better than
-- the record, which is the same for every retry in place. What a worker that died was running is suspected from here on.
with granted as (
    insert into jobs as j (
        job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id,
        topic, partition, "offset", enqueued_at, claimed_at
    )
    select
        r.job_id, r.job_type, r.tenant, r.queue, 'running', r.attempt, r.hop, 1, %(worker)s,
        r.topic, r.partition, r."offset", to_timestamp(r.enqueued_at / 1e6::float8), clock_timestamp()
    from unnest(
        %(job_id)s::uuid[], %(job_type)s::text[], %(tenant)s::text[], %(queue)s::text[], %(attempt)s::integer[],
        %(hop)s::integer[], %(topic)s::text[], %(partition)s::integer[], %(offset)s::bigint[], %(enqueued_at)s::bigint[]
    ) as r (job_id, job_type, tenant, queue, attempt, hop, topic, partition, "offset", enqueued_at)
    where exists (
        select from workers as w
        where w.worker_id = %(worker)s and w.alive_until > clock_timestamp() and w.left_at is null
    )
    on conflict (job_id) do update set
        state = 'running', hop = excluded.hop, token = j.token + 1,
        attempt = case when excluded.hop = j.hop then greatest(excluded.attempt, j.attempt) else excluded.attempt end,
        worker_id = excluded.worker_id, queue = excluded.queue, topic = excluded.topic,
        partition = excluded.partition, "offset" = excluded."offset", claimed_at = excluded.claimed_at,
        started_at = null, finished_at = null, due_at = null, reason = '',
        previous_state = j.state, previous_worker = j.worker_id,
        previous_attempt = j.attempt, previous_claimed_at = j.claimed_at,
        crashes = case
            when j.state = 'running' and j.worker_id <> excluded.worker_id and not worker_left(j.worker_id)
            then coalesce(j.crashes, 0) else j.crashes
        end
    where
        excluded.hop >= j.hop
        and case j.state
            when 'retrying' then excluded.hop > j.hop or j.due_at is null or j.due_at <= clock_timestamp()
            when 'dead' then excluded.hop > j.hop
            when 'running' then j.worker_id = excluded.worker_id or not worker_is_alive(j.worker_id)
            else false
        end
    returning
        job_id, token, attempt, crashes, previous_state, previous_worker, previous_attempt, previous_claimed_at
),
lost as (
    insert into attempts (job_id, token, attempt, worker_id, outcome, started_at, finished_at, reason)
    select
        job_id, token - 1, previous_attempt, previous_worker, 'lost', previous_claimed_at, clock_timestamp(),
        'lease_expired'
    from granted
    where previous_state = 'running' and previous_worker <> %(worker)s
    on conflict do nothing
)
select job_id::text, token, previous_state, previous_worker, attempt, crashes from granted

-- name: rows
-- The rows of jobs that were not granted, or not settled, to say why.
select
    job_id::text, state, hop, token, worker_id, topic, partition, "offset", attempt,
    case when state = 'retrying' and due_at > clock_timestamp() then extract(epoch from due_at) else 0 end::float8,
    state = 'running' and worker_is_alive(worker_id)
from jobs
where job_id = any(%(job_id)s::uuid[])

-- name: settle_completed
-- Settles runs that completed, each only if its claim still holds.
update jobs as j set
    state = 'completed', attempt = r.attempt, hop = r.hop,
    started_at = to_timestamp(r.started_at / 1e6::float8), finished_at = to_timestamp(r.finished_at / 1e6::float8)
from unnest(
    %(job_id)s::uuid[], %(token)s::bigint[], %(attempt)s::integer[], %(hop)s::integer[],
    %(started_at)s::bigint[], %(finished_at)s::bigint[]
) as r (job_id, token, attempt, hop, started_at, finished_at)
where j.job_id = r.job_id and j.token = r.token and j.worker_id = %(worker)s and j.state = 'running'
returning j.job_id::text

-- name: settle_any
-- The same for any state. A run that did not complete leaves a row in attempts; the job's row goes on to the next attempt.
with moved as (
    update jobs as j set
        state = r.state, attempt = r.row_attempt, hop = r.hop, reason = r.reason,
        started_at = to_timestamp(nullif(r.started_at, 0) / 1e6::float8), finished_at = to_timestamp(nullif(r.finished_at, 0) / 1e6::float8),
        due_at = to_timestamp(nullif(r.due_at, 0) / 1e6::float8), crashes = coalesce(j.crashes + r.crashed, nullif(r.crashed, 0))
    from unnest(
        %(job_id)s::uuid[], %(token)s::bigint[], %(state)s::text[], %(attempt)s::integer[], %(row_attempt)s::integer[],
        %(hop)s::integer[], %(started_at)s::bigint[], %(finished_at)s::bigint[], %(due_at)s::bigint[],
        %(crashed)s::integer[], %(reason)s::text[], %(outcome)s::text[], %(error_class)s::text[], %(message)s::text[],
        %(stack)s::text[]
    ) as r (
        job_id, token, state, attempt, row_attempt, hop, started_at, finished_at, due_at, crashed, reason,
        outcome, error_class, message, stack
    )
    where j.job_id = r.job_id and j.token = r.token and j.worker_id = %(worker)s and j.state = 'running'
    returning
        j.job_id, j.token, r.attempt, j.started_at, j.finished_at, j.reason,
        r.outcome, r.error_class, r.message, r.stack
),
kept as (
    insert into attempts (
        job_id, token, attempt, worker_id, outcome, started_at, finished_at, reason, error_class, error_message, stack
    )
    select
        job_id, token, attempt, %(worker)s, outcome, started_at, finished_at, reason, error_class, message, stack
    from moved
    where outcome <> ''
    on conflict do nothing
)
select job_id::text from moved

-- name: heartbeat
-- A worker that left stays gone: a late heartbeat must not hold its jobs back.
with beat as (
    insert into workers as w (worker_id, host, pid, queues, started_at, heartbeat_at, alive_until)
    select %(worker)s, %(host)s, %(pid)s, %(queues)s::text[], t.now, t.now, t.now + make_interval(secs => %(lease)s)
    from (select clock_timestamp() as now) as t
    on conflict (worker_id) do update set
        heartbeat_at = excluded.heartbeat_at, alive_until = excluded.alive_until,
        host = excluded.host, pid = excluded.pid, queues = excluded.queues
    where w.left_at is null
)
select extract(epoch from clock_timestamp())::float8

-- name: leave
update workers set left_at = clock_timestamp() where worker_id = %(worker)s and left_at is null

-- name: job
select
    job_id::text, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition, "offset", reason,
    coalesce(extract(epoch from enqueued_at), 0)::float8, coalesce(extract(epoch from claimed_at), 0)::float8,
    coalesce(extract(epoch from started_at), 0)::float8, coalesce(extract(epoch from finished_at), 0)::float8,
    coalesce(extract(epoch from due_at), 0)::float8, crashes
from jobs
where job_id = %(job_id)s::uuid

-- name: attempts
select
    attempt, token, worker_id, outcome,
    coalesce(extract(epoch from started_at), 0)::float8, coalesce(extract(epoch from finished_at), 0)::float8,
    reason, error_class, error_message, stack
from attempts
where job_id = %(job_id)s::uuid
order by token

-- name: workers
select
    worker_id, host, pid, queues,
    extract(epoch from started_at)::float8, extract(epoch from heartbeat_at)::float8,
    extract(epoch from alive_until)::float8, coalesce(extract(epoch from left_at), 0)::float8,
    alive_until > clock_timestamp() and left_at is null
from workers
order by started_at, worker_id

-- name: counts
select state, count(*) from jobs group by state

-- name: dead_count
-- Jobs that died and were not replayed since.
select count(*)
from attempts as a
join jobs as j on j.job_id = a.job_id and j.token = a.token and j.state = 'dead'
where a.outcome = 'dead'
