"""The dead-letter desk on a real Postgres, with topics in memory: so that a broker can fail where a test wants it to."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from pipeline.adapters.postgres import migrate
from pipeline.adapters.postgres.letter_index import PostgresLetterIndex
from pipeline.core.clock import SystemClock
from pipeline.core.desk import Scope, Span, Task, TaskKind
from pipeline.core.job import Record, Source
from pipeline.core.letter_facts import LetterState
from pipeline.core.parked import ParkedRecord
from pipeline.core.ports import Delivered, Outgoing
from pipeline.core.selection import Selection
from pipeline.core.topics import TopicNames
from pipeline.runtime.dlq import Desk
from pipeline.runtime.dlq_pace import Pace
from pipeline.runtime.dlq_records import Targets
from pipeline.runtime.dlq_replay import Progress, Report, Tools, run_replay
from pipeline.runtime.dlq_tasks import Operator, begin, resume
from tests.unit.letter_examples import NOW

__all__ = ["Killed", "MemoryTopics", "Producer", "World", "desk_world"]

NAMES = TopicNames("jobs")
OPERATOR = Operator("ada@desk", "the bug is fixed")
ALL = Selection()


class Killed(BaseException):
    """The process dies here: nothing of ours handles it."""


class MemoryTopics:
    """`LetterTopics` over lists; a topic that nobody has written to has one empty partition."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = defaultdict(list)
        self.begins: dict[tuple[str, int], int] = {}
        self.given = 0

    def write(self, topic: str, records: Sequence[Record]) -> None:
        """Append as they are, but for their topic and offset."""
        for record in records:
            offset = self.end(topic, record.partition)
            self.records[topic].append(record._replace(topic=topic, offset=offset))

    def end(self, topic: str, partition: int) -> int:
        offsets = [record.offset + 1 for record in self.records[topic] if record.partition == partition]
        return max([self.begins.get((topic, partition), 0), *offsets])

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.begins[topic, partition] = offset
        self.records[topic] = [
            record
            for record in self.records[topic]
            if record.partition != partition or record.offset >= offset
        ]

    def bounds(self, topic: str) -> list[Span]:
        numbers = sorted({0, *(record.partition for record in self.records[topic])})
        return [Span(n, self.begins.get((topic, n), 0), self.end(topic, n)) for n in numbers]

    def read(self, topic: str, spans: Sequence[Span]) -> Generator[Record]:
        for record in list(self.records[topic]):
            if any(s.partition == record.partition and s.start <= record.offset < s.stop for s in spans):
                self.given += 1
                yield record


class Producer:
    """`JobProducer` into memory topics. `fails` gives the error of a record, or raises what ends the process."""

    def __init__(
        self, topics: MemoryTopics, fails: Callable[[Outgoing], Exception | None] = lambda _: None
    ) -> None:
        self._topics = topics
        self._fails = fails
        self.sent: list[Outgoing] = []
        self.batches = 0

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        raise AssertionError(f"a replay sends whole batches, not {record} with {on_delivery}")

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        self.batches += bool(records)
        return [self._end(record) for record in records]

    def _end(self, record: Outgoing) -> Delivered:
        error = self._fails(record)
        if error is not None:
            return Delivered(None, error)
        self.sent.append(record)
        offset = self._topics.end(record.topic, 0)
        self._topics.write(
            record.topic, [Record(record.topic, 0, 0, record.key, record.value, record.headers, NOW)]
        )
        return Delivered(Source(record.topic, 0, offset), None)

    def flush(self, timeout: float) -> int:
        del timeout
        return 0

    def close(self) -> None: ...


class Parking:
    """`Parking` over a dict."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], ParkedRecord] = {}

    def park(self, parked: ParkedRecord) -> None:
        self.kept[parked.job.job_id, parked.job.hop] = parked

    def load(self, job_id: str, hop: int) -> ParkedRecord | None:
        return self.kept.get((job_id, hop))

    def close(self) -> None: ...


class World:
    """A desk with topics in memory. `process` is another one on the same tables, as another process would have it."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        topics: MemoryTopics | None = None,
        *,
        queues: Sequence[str] = ("default",),
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self.topics = topics or MemoryTopics()
        self.index = PostgresLetterIndex(dsn, schema=schema)
        self.dlqs = {queue: NAMES.dlq(queue) for queue in queues}
        self.desk = Desk(index=self.index, source=self.topics, topics=self.dlqs)
        self.parking = Parking()
        self.stop = threading.Event()

    @contextmanager
    def process(self) -> Iterator[World]:
        other = World(self.dsn, self.schema, self.topics, queues=list(self.dlqs))
        other.parking = self.parking
        try:
            yield other
        finally:
            other.index.close()

    def bury(self, records: Sequence[Record], queue: str = "default") -> None:
        self.topics.write(self.dlqs[queue], records)

    def begin(self, selection: Selection = ALL, **options: Any) -> Task:
        ends = {queue: caught.ends for queue, caught in self.desk.catch_up().items()}
        values = (options.pop("old_value", None), options.pop("new_value", None))
        kind = TaskKind.EDIT if values[1] is not None else TaskKind.REPLAY
        scope = self.desk.scope(selection, queue=None)
        return begin(self.index, kind, scope, ends=ends, operator=OPERATOR, options=options, values=values)

    def run(
        self,
        task: Task,
        producer: Producer | None = None,
        *,
        tell: Callable[[Progress], None] = lambda _: None,
        max_replays: int = 5,
        rate: float = 0,
    ) -> Report:
        return run_replay(self.tools(task, producer, max_replays=max_replays, rate=rate), task, tell=tell)

    def tools(self, task: Task, producer: Producer | None, *, max_replays: int, rate: float) -> Tools:
        declared = [NAMES.main(queue) for queue in self.dlqs]
        to = task.options.get("to", "")
        return Tools(
            index=self.index,
            source=self.topics,
            parking=self.parking,
            topics=self.dlqs,
            max_replays=max_replays,
            producer=producer or Producer(self.topics),
            targets=Targets(names=NAMES, declared=declared, letters=self.dlqs.values(), to=to),
            pace=Pace(rate=rate, max_lag=0, lags=dict, clock=SystemClock(), stop=self.stop),
        )

    def replay(self, selection: Selection = ALL, producer: Producer | None = None, **options: Any) -> Report:
        """Begin a task and run it through."""
        return self.run(self.begin(selection, **options), producer)

    def resume(self, number: int) -> Task:
        return resume(self.index, number)

    def states(self) -> dict[str, LetterState]:
        """The state of each letter, by partition:offset."""
        scope = Scope(ALL, list(self.dlqs), list(LetterState))
        return {str(each.facts.position): each.state for each in self.index.page(scope, limit=100_000)}

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(
            self.dsn, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            return connection.execute(query.encode()).fetchall()

    def execute(self, query: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> None:
        with psycopg.connect(
            self.dsn, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            connection.execute(query.encode(), values)

    def job(self, job_id: str, state: str, hop: int) -> None:
        """A row of the jobs table."""
        self.execute(
            "insert into jobs (job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition,"
            " \"offset\", enqueued_at, claimed_at) values (%s, 'email.send', 'acme', 'default', %s, 1, %s, 1, 'w',"
            " 'jobs.default.normal', 0, 0, now(), now())"
            " on conflict (job_id) do update set state = excluded.state, hop = excluded.hop",
            [job_id, state, hop],
        )


@contextmanager
def desk_world(dsn: str, schema: str, *, queues: Sequence[str] = ("default",)) -> Iterator[World]:
    migrate(dsn, schema=schema)
    world = World(dsn, schema, queues=queues)
    try:
        yield world
    finally:
        world.index.close()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'drop schema "{schema}" cascade'.encode())
