-- Statements about parked records; see queries.sql.

-- name: park
insert into parked (
    job_id, hop, job_type, tenant, queue, reason, topic, partition, "offset", written_at, key, value,
    header_names, header_values
) values (
    %(job_id)s, %(hop)s, %(job_type)s, %(tenant)s, %(queue)s, %(reason)s, %(topic)s, %(partition)s, %(offset)s,
    to_timestamp(%(written_at)s), %(key)s, %(value)s, %(header_names)s, %(header_values)s
)
on conflict (job_id, hop) do update set
    reason = excluded.reason, topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset",
    written_at = excluded.written_at, key = excluded.key, value = excluded.value,
    header_names = excluded.header_names, header_values = excluded.header_values

-- name: parked
select
    queue, reason, topic, partition, "offset", key, value, header_names, header_values,
    extract(epoch from written_at)::float8
from parked
where job_id = %(job_id)s and hop = %(hop)s
