-- Where the demo's e-mail handler writes its effect. It lies beside the pipeline's own tables, because a handler's
-- transaction is one with the completion of its job and so has their search path.
create schema if not exists pipeline;

create table if not exists pipeline.demo_sent (
    job_id    uuid primary key,
    recipient text not null,
    token     bigint not null
);
