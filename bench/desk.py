"""The dead-letter desk: to plan a replay of a million letters, and to replay as fast as it goes.

The plan is made from the index alone, so a million rows are written there and no records. What is replayed are real letters,
as a worker writes them; the baseline produces the very same records with a bare client in the same run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice

from confluent_kafka import Producer

from bench.jobs import TENANTS
from bench.place import Place, child, fresh_place
from pipeline.adapters.kafka.config import producer_config
from pipeline.core.decision import DeadLetter
from pipeline.core.desk import Ends, Scope, Span, TaskKind
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.letter_facts import LetterState
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failure
from pipeline.core.ports import Outgoing
from pipeline.core.selection import Selection
from pipeline.desk import OpenDesk, open_desk
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.dlq_plan import make_plan
from pipeline.runtime.dlq_replay import run_replay
from pipeline.runtime.dlq_tasks import Operator, begin
from pipeline.runtime.onward import dead_letter

__all__ = ["run"]

ROWS = 1_000_000
LETTERS = 60_000
PARTITIONS = 12
BATCH = 1000
FAILURE = Failure(
    "billing.NoSuchAddress",
    "the customer has no address, the invoice cannot be rendered",
    '  File "/srv/app/handlers.py", line 31, in render\n    address = customer.addresses[0]\n' * 12,
)

_JOBS = """
insert into jobs (
    job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition, "offset",
    enqueued_at, claimed_at, started_at, finished_at
)
select
    job_id, job_type, tenant, queue, 'dead', attempt, hop, 5, 'bench-worker-0198c2a3', first_topic, first_partition,
    first_offset, dead_at, dead_at, dead_at, dead_at
from letters
"""
_LETTERS = """
insert into letters (
    queue, partition, "offset", job_id, job_type, tenant, priority, dialect, origin, malformed, hop, attempt, replays,
    reason, error_class, message, schema, first_topic, first_partition, first_offset, last_topic, last_partition,
    last_offset, size, dead_at, state
)
select
    'default', i %% %(partitions)s, i / %(partitions)s,
    (lpad(to_hex(1700000000000 + i / 20), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8'
        || substr(md5(i::text), 4, 15))::uuid,
    'work.type-' || i %% 20, 'tenant-' || i %% %(tenants)s, 'normal', 'pipeline', '', false, 4, 5, 0,
    'max_attempts', 'billing.Error' || i %% 7, 'the customer has no address ' || i, '', 'jobs.default.normal', 0, i,
    'jobs.default.retry.1h', 0, i, 300, now() - make_interval(secs => i / 10), 'open'
from generate_series(0, %(rows)s - 1) as i
"""


def run(bootstrap: str, dsn: str, *, rows: int = ROWS, letters: int = LETTERS) -> dict[str, float]:
    """Measure in places of its own on these servers."""
    with _opened(bootstrap, dsn) as (_, opened):
        figures = _plans(opened, rows)
    with _opened(bootstrap, dsn) as (place, opened):
        return figures | _replay(place, opened, letters)


@contextmanager
def _opened(bootstrap: str, dsn: str) -> Iterator[tuple[Place, OpenDesk]]:
    with fresh_place(bootstrap, dsn, partitions=PARTITIONS) as place, open_desk(place.app()) as opened:
        yield place, opened


def _execute(opened: OpenDesk, statement: str, values: Mapping[str, object] | None = None) -> None:
    with opened.app.connection() as connection:
        connection.execute(f'set search_path to "{opened.app.settings.postgres.schema_name}"')
        connection.execute(statement, values)
        connection.execute("analyze letters, jobs")
        connection.commit()


# --- the plan


def _plans(opened: OpenDesk, rows: int) -> dict[str, float]:
    """Seconds from the question to the plan, of a selection and of everything."""
    _execute(opened, _LETTERS, {"partitions": PARTITIONS, "tenants": TENANTS, "rows": rows})
    _execute(opened, _JOBS)
    end = -(-rows // PARTITIONS)
    some = Selection(job_types=frozenset(["work.type-3", "work.type-4"]), errors=frozenset(["Error5"]))
    by_filter, chosen = _plan(opened, some, end)
    of_all, every = _plan(opened, Selection(), end)
    assert every == rows, (every, rows)
    assert 0 < chosen < rows, chosen
    return {"desk.plan_1m_s": by_filter, "desk.plan_1m_all_s": of_all}


def _plan(opened: OpenDesk, selection: Selection, end: int) -> tuple[float, int]:
    """What `pipeline dlq replay` asks before it sends: is the index complete, and what of each kind is there?"""
    started = time.perf_counter()
    index = opened.index
    assert not index.gaps("default", [Span(number, 0, end - 1) for number in range(PARTITIONS)])
    ends: Ends = {"default": dict.fromkeys(range(PARTITIONS), end)}
    groups = index.plan(Scope(selection, ["default"], tuple(LetterState)), ends, max_replays=5)
    plan = make_plan(groups, targets=opened.targets(), check_schema=lambda _type, _schema: None, parked=False)
    return time.perf_counter() - started, plan.to_send


# --- the replay


def _replay(place: Place, opened: OpenDesk, count: int) -> dict[str, float]:
    _bury(place, opened, count)
    started = time.perf_counter()
    ends = {"default": opened.desk.catch_up()["default"].ends}
    indexed = time.perf_counter() - started
    _execute(opened, _JOBS)
    target = opened.app.names.main("default")
    before = {span.partition: span.stop for span in opened.source.bounds(target)}
    seconds, cpu = _timed_replay(opened, ends, count)
    bare = _bare(
        opened, [record for record in _records(opened, target) if record.offset >= before[record.partition]]
    )
    return {
        "desk.index_letters_per_s": count / indexed,
        "desk.replay_letters_per_s": count / seconds,
        "desk.replay_cpu_us_per_letter": cpu / count * 1e6,
        "desk.bare_produce_per_s": bare,
        "desk.replay_ratio": count / seconds / bare,
    }


def _bury(place: Place, opened: OpenDesk, count: int) -> None:
    """Letters as a worker writes them, of jobs that a publisher of ours wrote."""
    names = opened.app.names
    child(place, "publish", count=count - 1)  # and one job before, to warm up
    with closing(opened.app.producer(2_000_000, linger_ms=5.0)) as producer:
        records = _records(opened, names.main("default"))
        while batch := list(islice(records, BATCH)):
            ends = producer.send_all([_letter(record, names.dlq("default")) for record in batch])
            assert all(end.error is None for end in ends)


def _letter(record: Record, topic: str) -> Outgoing:
    job, problem = parse_job(record, queue="default")
    delivery = Delivery(record, Partition(record.topic, record.partition), job, problem)
    return dead_letter(
        delivery, DeadLetter("permanent", FAILURE, ()), topic=topic, group="bench", now=time.time()
    )


def _records(opened: OpenDesk, topic: str) -> Iterator[Record]:
    spans = [span for span in opened.source.bounds(topic) if span.start < span.stop]
    return opened.source.read(topic, spans)


def _timed_replay(opened: OpenDesk, ends: Ends, count: int) -> tuple[float, float]:
    """Wall and CPU seconds of a replay of everything, as fast as it goes."""
    scope = opened.desk.scope(Selection(), queue=None)
    operator = Operator("bench")
    task = begin(opened.index, TaskKind.REPLAY, scope, ends=ends, operator=operator, options={})
    targets = opened.targets()
    with opened.tools(targets=targets, watched=(), rate=0.0, max_lag=0, stop=threading.Event()) as tools:
        started, cpu = time.perf_counter(), time.process_time()
        report = run_replay(tools, task)
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
    assert report.counts == {"sent": count}, report.counts
    return seconds, used


def _bare(opened: OpenDesk, records: Sequence[Record]) -> float:
    """Records a second of a client that writes the same keys, values and headers, with the same settings."""
    settings = opened.app.settings
    producer = Producer(producer_config(settings.kafka.bootstrap_servers, linger_ms=5.0))
    topic = opened.app.names.main("default")
    errors: list[object] = []

    def reported(error: object, _message: object) -> None:
        if error is not None:
            errors.append(error)

    started = time.perf_counter()
    for number, record in enumerate(records):
        producer.produce(topic, record.value, record.key, headers=list(record.headers), on_delivery=reported)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - started
    assert not errors, errors[0]
    return len(records) / seconds
