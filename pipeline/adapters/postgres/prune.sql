-- Deleting what has ended long ago. There is no index on the time that a job ended at (it would cost every update its place
-- in the page), so the table is gone through page by page, a few at a time, in the order in which it lies.

-- name: prune_turn
-- Nobody else's while this transaction lasts. No row: another one is at it, or it is not time.
select page, done, (pg_relation_size('jobs') / current_setting('block_size')::integer)::integer
from upkeep
where task = 'prune' and next_at <= clock_timestamp()
for update skip locked

-- name: prune_turn_over
update upkeep set
    page = %(page)s, done = %(done)s, next_at = clock_timestamp() + make_interval(secs => %(rest)s)
where task = 'prune'

-- name: prune_pages
-- A job with a letter in the index is the desk's: it goes when its letter is forgotten.
with gone as (
    delete from jobs as j
    where j.ctid >= %(first)s::tid and j.ctid < %(end)s::tid
        and j.state in ('completed', 'cancelled', 'dead')
        and coalesce(j.finished_at, j.claimed_at) < clock_timestamp() - make_interval(secs => %(keep)s)
        and not exists (select from letters as l where l.job_id = j.job_id)
    returning j.job_id
),
told as (
    delete from attempts as a using gone where a.job_id = gone.job_id
)
select count(*) from gone

-- name: prune_workers
-- Whose jobs, if any are left, were taken over long ago.
delete from workers
where coalesce(left_at, alive_until)
    < clock_timestamp() - make_interval(secs => greatest(%(keep)s, 86400))

-- name: prune_count
select
    (
        select count(*) from jobs as j
        where j.state in ('completed', 'cancelled', 'dead')
            and coalesce(j.finished_at, j.claimed_at) < clock_timestamp() - make_interval(secs => %(keep)s)
            and not exists (select from letters as l where l.job_id = j.job_id)
    ),
    (
        select count(*) from workers
        where coalesce(left_at, alive_until)
            < clock_timestamp() - make_interval(secs => greatest(%(keep)s, 86400))
    )
