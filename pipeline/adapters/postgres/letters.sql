-- Every statement of the dead-letter desk. {where} stands for a selection, see letter_select.py; {groups} for columns.
-- Those that take arrays read element i of each as one row.

-- name: letters_put
-- Puts letters into the index. A letter that is new there gets its state from what a task did with it, or from its job.
-- One that is there stays as it is, unless another record has taken its place: the topic was deleted and made anew. To
-- `refresh` writes the facts again, and closes what turns out to be resolved.
insert into letters as l (
    queue, partition, "offset", job_id, job_type, tenant, priority, dialect, origin, malformed, hop, attempt, replays,
    reason, error_class, message, schema, first_topic, first_partition, first_offset, last_topic, last_partition,
    last_offset, size, dead_at, state, since, task
)
select
    r.queue, r.partition, r."offset", r.job_id, r.job_type, r.tenant, r.priority, r.dialect, r.origin, r.malformed,
    r.hop, r.attempt, r.replays, r.reason, r.error_class, r.message, r.schema, r.first_topic, r.first_partition,
    r.first_offset, r.last_topic, r.last_partition, r.last_offset, r.size, to_timestamp(r.dead_at),
    case
        when o.state <> 'open' then o.state
        when j.state in ('completed', 'cancelled') then j.state
        when j.hop > r.hop then 'replayed'
        else 'open'
    end,
    case
        when o.state <> 'open' then o.at
        when j.state in ('completed', 'cancelled') or j.hop > r.hop then coalesce(j.finished_at, j.claimed_at)
    end,
    case when o.state <> 'open' then o.task end
from unnest(
    %(queue)s::text[], %(partition)s::integer[], %(offset)s::bigint[], %(job_id)s::uuid[], %(job_type)s::text[],
    %(tenant)s::text[], %(priority)s::text[], %(dialect)s::text[], %(origin)s::text[], %(malformed)s::boolean[],
    %(hop)s::integer[], %(attempt)s::integer[], %(replays)s::integer[], %(reason)s::text[], %(error_class)s::text[],
    %(message)s::text[], %(schema)s::text[], %(first_topic)s::text[], %(first_partition)s::integer[],
    %(first_offset)s::bigint[], %(last_topic)s::text[], %(last_partition)s::integer[], %(last_offset)s::bigint[],
    %(size)s::integer[], %(dead_at)s::float8[]
) as r (
    queue, partition, "offset", job_id, job_type, tenant, priority, dialect, origin, malformed, hop, attempt, replays,
    reason, error_class, message, schema, first_topic, first_partition, first_offset, last_topic, last_partition,
    last_offset, size, dead_at
)
left join jobs as j on j.job_id = r.job_id
left join lateral (
    select d.state, d.at, d.task
    from desk_outcomes as d
    where d.queue = r.queue and d.partition = r.partition and d."offset" = r."offset"
        and d.job_id = r.job_id and d.hop = r.hop
    order by d.at desc, d.task desc
    limit 1
) as o on true
on conflict (queue, partition, "offset") do update set
    job_id = excluded.job_id, job_type = excluded.job_type, tenant = excluded.tenant, priority = excluded.priority,
    dialect = excluded.dialect, origin = excluded.origin, malformed = excluded.malformed, hop = excluded.hop,
    attempt = excluded.attempt, replays = excluded.replays, reason = excluded.reason,
    error_class = excluded.error_class, message = excluded.message, schema = excluded.schema,
    first_topic = excluded.first_topic, first_partition = excluded.first_partition,
    first_offset = excluded.first_offset, last_topic = excluded.last_topic, last_partition = excluded.last_partition,
    last_offset = excluded.last_offset, size = excluded.size, dead_at = excluded.dead_at,
    state = case when letter_stays(l, excluded) then l.state else excluded.state end,
    since = case when letter_stays(l, excluded) then l.since else excluded.since end,
    task = case when letter_stays(l, excluded) then l.task else excluded.task end
where %(refresh)s or (l.job_id, l.hop) <> (excluded.job_id, excluded.hop)

-- name: letters_positions
select partition, begins_at, complete_to from letter_positions where queue = %(queue)s

-- name: letters_gaps
-- Runs of offsets that are not in the index, from `start` to `stop` of each partition.
select r.partition, gap.start, gap.stop
from unnest(%(partition)s::integer[], %(start)s::bigint[], %(stop)s::bigint[]) as r (partition, start, stop)
cross join lateral (
    select coalesce(lag(known."offset") over (order by known."offset") + 1, r.start) as start, known."offset" as stop
    from (
        select l."offset"
        from letters as l
        where l.queue = %(queue)s and l.partition = r.partition and l."offset" >= r.start and l."offset" < r.stop
        union all
        select r.stop
    ) as known
) as gap
where gap.start < gap.stop
order by r.partition, gap.start

-- name: letters_advance
insert into letter_positions (queue, partition, begins_at, complete_to)
select %(queue)s, r.partition, r.start, r.stop
from unnest(%(partition)s::integer[], %(start)s::bigint[], %(stop)s::bigint[]) as r (partition, start, stop)
on conflict (queue, partition) do update set begins_at = excluded.begins_at, complete_to = excluded.complete_to

-- name: letters_expire
-- Letters in these spans that wait, while their record has left the topic.
update letters as l set state = 'expired', since = clock_timestamp(), task = null
from unnest(%(partition)s::integer[], %(start)s::bigint[], %(stop)s::bigint[]) as r (partition, start, stop)
where l.queue = %(queue)s and l.state in ('open', 'parked')
    and l.partition = r.partition and l."offset" >= r.start and l."offset" < r.stop

-- name: letters_forget
-- The topic was deleted and made anew: it has nothing in these spans.
delete from letters as l
using unnest(%(partition)s::integer[], %(start)s::bigint[], %(stop)s::bigint[]) as r (partition, start, stop)
where l.queue = %(queue)s and l.partition = r.partition and l."offset" >= r.start and l."offset" < r.stop

-- name: letters_page
-- The newest first; the key of the row before is excluded.
select
    l.queue, l.partition, l."offset", l.job_id::text, l.job_type, l.tenant, l.priority, l.dialect, l.origin,
    l.malformed, l.hop, l.attempt, l.replays, l.reason, l.error_class, l.message, l.schema, l.first_topic,
    l.first_partition, l.first_offset, l.last_topic, l.last_partition, l.last_offset, l.size,
    extract(epoch from l.dead_at)::float8, l.state, coalesce(extract(epoch from l.since), 0)::float8,
    coalesce(l.task, 0)
from letters as l
where {where}
order by l.dead_at desc, l.queue desc, l.partition desc, l."offset" desc
limit %(limit)s

-- name: letters_count
select count(*) from letters as l where {where}

-- name: letters_open
-- For a gauge: from the index alone.
select count(*) from letters where queue = %(queue)s and state = 'open'

-- name: letters_groups
select {groups}, count(*), extract(epoch from min(l.dead_at))::float8, extract(epoch from max(l.dead_at))::float8
from letters as l
where {where}
group by {groups}
order by count(*) desc, {groups}
limit %(limit)s

-- name: letters_plan
-- What a replay would do with the letters that lie before `ends`, and why not.
select
    l.queue, l.priority, l.origin, l.job_type, l.tenant, l.schema, l.malformed,
    l.reason in ('undecodable', 'malformed'), l.dialect <> 'pipeline' and l.malformed,
    l.replays >= %(max_replays)s,
    case
        when l.state not in ('open', 'parked') then l.state
        when j.state in ('completed', 'cancelled') then j.state
        when j.hop > l.hop then 'replayed'
        when j.hop = l.hop and j.state <> 'dead' then 'unsettled'
        else l.state
    end as standing,
    count(*)
from letters as l
join unnest(%(end_queue)s::text[], %(end_partition)s::integer[], %(end_offset)s::bigint[]) as e (queue, partition, stop)
    on e.queue = l.queue and e.partition = l.partition and l."offset" < e.stop
left join jobs as j on j.job_id = l.job_id and l.state in ('open', 'parked')
where {where}
group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
order by count(*) desc

-- name: letters_spans
-- Where the letters lie that a replay wants: runs of offsets, with no more than `tolerance` others between two of them.
with wanted as (
    select l.partition, l."offset", lag(l."offset") over (partition by l.partition order by l."offset") as previous
    from letters as l
    join unnest(%(partition)s::integer[], %(start)s::bigint[], %(stop)s::bigint[]) as e (partition, start, stop)
        on e.partition = l.partition and l."offset" >= e.start and l."offset" < e.stop
    where l.queue = %(queue)s and {where}
),
numbered as (
    select partition, "offset",
        count(*) filter (where previous is null or "offset" - previous > %(tolerance)s)
            over (partition by partition order by "offset") as run
    from wanted
)
select partition, min("offset"), max("offset") + 1, count(*)
from numbered
group by partition, run
order by partition, run

-- name: letters_look
-- Locks letters that are meant and still wait, and tells what became of their jobs. What another task has locked at this
-- moment is left to it.
select
    l.partition, l."offset", l.hop, l.replays, l.state, j.state, coalesce(j.hop, 0),
    exists (
        select from letters as c
        where c.job_id = l.job_id and c.hop = l.hop and c.state in ('replaying', 'replayed')
            and (c.queue, c.partition, c."offset") <> (l.queue, l.partition, l."offset")
    )
from unnest(%(partition)s::integer[], %(offset)s::bigint[], %(job_id)s::uuid[]) as r (partition, "offset", job_id)
join letters as l on l.queue = %(queue)s and l.partition = r.partition and l."offset" = r."offset" and l.job_id = r.job_id
left join jobs as j on j.job_id = l.job_id
where {where}
order by l.partition, l."offset"
for update of l skip locked

-- name: letters_take
update letters as l set state = 'replaying', since = clock_timestamp(), task = %(task)s
from unnest(%(partition)s::integer[], %(offset)s::bigint[]) as r (partition, "offset")
where l.queue = %(queue)s and l.partition = r.partition and l."offset" = r."offset"

-- name: letters_settle
-- Moves letters to the states that a task gave them, and keeps that.
with moved as (
    update letters as l set
        state = r.state,
        since = case when r.state <> 'open' then statement_timestamp() end,
        task = case when r.state <> 'open' then %(task)s::bigint end
    from unnest(
        %(partition)s::integer[], %(offset)s::bigint[], %(state)s::text[], %(detail)s::text[], %(target_topic)s::text[],
        %(target_partition)s::integer[], %(target_offset)s::bigint[]
    ) as r (partition, "offset", state, detail, target_topic, target_partition, target_offset)
    where l.queue = %(queue)s and l.partition = r.partition and l."offset" = r."offset"
    returning
        l.partition, l."offset", l.job_id, l.hop, r.state, r.detail,
        r.target_topic, r.target_partition, r.target_offset
)
insert into desk_outcomes (
    task, queue, partition, "offset", job_id, hop, state, detail, at, target_topic, target_partition, target_offset
)
select
    %(task)s, %(queue)s, partition, "offset", job_id, hop, state, detail, statement_timestamp(),
    target_topic, target_partition, target_offset
from moved
on conflict (queue, partition, "offset", task) do update set
    job_id = excluded.job_id, hop = excluded.hop, state = excluded.state, detail = excluded.detail, at = excluded.at,
    target_topic = excluded.target_topic, target_partition = excluded.target_partition,
    target_offset = excluded.target_offset

-- name: letters_move
-- The same for all letters of a selection at once, to one state.
with moved as (
    update letters as l set
        state = %(to)s,
        since = case when %(to)s <> 'open' then statement_timestamp() end,
        task = case when %(to)s <> 'open' then %(task)s::bigint end
    where {where} and not exists (
        -- What is gone from the topic cannot be open again.
        select from letter_positions as p
        where %(to)s = 'open' and p.queue = l.queue and p.partition = l.partition and l."offset" < p.begins_at
    )
    returning l.queue, l.partition, l."offset", l.job_id, l.hop
)
insert into desk_outcomes (
    task, queue, partition, "offset", job_id, hop, state, detail, at, target_topic, target_partition, target_offset
)
select %(task)s, queue, partition, "offset", job_id, hop, %(to)s, '', statement_timestamp(), '', -1, -1 from moved

-- name: letters_in_doubt
-- What a task had in hand when its process died.
select queue, partition, "offset", dialect <> 'pipeline' and malformed, extract(epoch from clock_timestamp() - since)::float8
from letters
where state = 'replaying' and task = %(task)s
order by queue, partition, "offset"

-- name: letters_stranded
-- Tasks that died with letters in hand.
select task from (select distinct task from letters where state = 'replaying') as t where not desk_task_is_held(task)

-- name: letters_purge
-- Never a letter that waits.
delete from letters as l
where l.queue = %(queue)s
    and l.state in ('replayed', 'discarded', 'completed', 'cancelled', 'copy')
    and l.since < clock_timestamp() - make_interval(secs => %(age)s)

-- name: outcomes_purge
-- What was done with letters whose record has left the topic, and that the index does not have any more.
delete from desk_outcomes as o
using unnest(%(partition)s::integer[], %(first)s::bigint[]) as r (partition, first)
where o.queue = %(queue)s and o.partition = r.partition and o."offset" < r.first
    and o.at < clock_timestamp() - make_interval(secs => %(age)s)
    and not exists (
        select from letters as l where l.queue = o.queue and l.partition = o.partition and l."offset" = o."offset"
    )

-- name: task_new
insert into desk_tasks (kind, state, who, why, selection, options, ends, old_value, new_value)
values (
    %(kind)s, 'running', %(who)s, %(why)s, %(selection)s, %(options)s, %(ends)s, %(old_value)s, %(new_value)s
)
returning id

-- name: task_lock
select pg_try_advisory_lock(desk_task_key(%(task)s))

-- name: task_unlock
select pg_advisory_unlock(desk_task_key(%(task)s))

-- name: task_save
update desk_tasks set
    state = %(state)s, counts = coalesce(%(counts)s, counts), updated_at = clock_timestamp(),
    finished_at = case when %(state)s = 'done' then clock_timestamp() end
where id = %(task)s

-- name: task_reached
update desk_tasks set cursor = %(cursor)s, counts = %(counts)s, updated_at = clock_timestamp() where id = %(task)s

-- name: task_doubt
update desk_tasks set in_doubt = %(in_doubt)s where id = %(task)s

-- name: tasks
select
    id, kind,
    case when state = 'running' and not desk_task_is_held(id) then 'interrupted' else state end,
    who, why, selection, options, ends, cursor, counts, in_doubt,
    extract(epoch from created_at)::float8, extract(epoch from updated_at)::float8,
    coalesce(extract(epoch from finished_at), 0)::float8, old_value, new_value
from desk_tasks
where id = %(task)s or %(task)s = 0
order by id desc
limit %(limit)s

-- name: outcomes_of_task
select queue, partition, "offset", job_id::text, hop, state, detail, extract(epoch from at)::float8, target_topic,
    target_partition, target_offset, task
from desk_outcomes
where task = %(task)s
order by queue, partition, "offset"
limit %(limit)s

-- name: outcomes_of_letter
select o.queue, o.partition, o."offset", o.job_id::text, o.hop, o.state, o.detail, extract(epoch from o.at)::float8,
    o.target_topic, o.target_partition, o.target_offset, o.task
from desk_outcomes as o
join letters as l on (l.queue, l.partition, l."offset") = (o.queue, o.partition, o."offset")
where l.job_id = %(job_id)s::uuid and o.job_id = l.job_id
order by o.at
