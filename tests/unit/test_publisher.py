"""Publishing: what is wrong is named and nothing is sent; what was sent is acknowledged, or reported as unknown."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from pipeline.adapters.memory_broker import MemoryBroker
from pipeline.core.headers import parse_job
from pipeline.core.job import Source
from pipeline.core.job_type import JobType
from pipeline.core.ports import Delivered, Outgoing
from pipeline.core.topics import TopicNames
from pipeline.errors import (
    BrokerUnavailable,
    InvalidJob,
    PayloadTooLarge,
    PublishFailed,
    PublishUnknown,
    UnknownJobType,
    UnknownQueue,
)
from pipeline.runtime.handlers import Registry
from pipeline.runtime.publisher import JobRequest, Publisher
from tests.unit.runtime_parts import MAIL, MAIN, NOW, Counts, JsonCodec, Mail, clock_at

GPU: JobType[Mail] = JobType(name="image.scale", model=Mail, queue="gpu")


class Picky(BaseModel):
    to: str

    @field_validator("to")
    @classmethod
    def check(cls, value: str) -> str:
        return {"ann": value}[value]  # raises KeyError, which pydantic lets pass


PICKY: JobType[Picky] = JobType(name="picky", model=Picky)


class LateProducer:
    """Acknowledges when it is told to, or never."""

    def __init__(self) -> None:
        self.sent: list[tuple[Outgoing, Callable[[Delivered], None]]] = []
        self.flushed: list[float] = []
        self.closed = False
        self.refuses: Exception | None = None
        self.on_flush: Callable[[], object] = lambda: None

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert on_delivery is not None
        self.sent.append((record, on_delivery))

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        raise NotImplementedError

    def flush(self, timeout: float) -> int:
        self.flushed.append(timeout)
        self.on_flush()
        return len(self.sent)

    def close(self) -> None:
        self.closed = True

    def end(self, index: int, error: Exception | None = None) -> None:
        record, on_delivery = self.sent[index]
        source = None if error else Source(record.topic, 0, index)
        on_delivery(Delivered(source, error))


class Bench:
    def __init__(self, producer: LateProducer | None = None, **options: Any) -> None:
        self.broker = MemoryBroker(clock_at(), max_message_bytes=1000)
        self.broker.create_topic(MAIN, 3)
        self.counts = Counts()
        registry = Registry()
        for job_type in (MAIL, GPU, PICKY):
            registry.declare(job_type)
        self.publisher = Publisher(
            **{
                "registry": registry,
                "producer": producer or self.broker.producer(),
                "codec": JsonCodec(("email.send", Mail), ("image.scale", Mail), ("picky", Picky)),
                "names": TopicNames(),
                "queues": ["default"],
                "source": "shop",
                "clock": clock_at(),
                "metrics": self.counts,
                "timeout": 0.05,
                **options,
            }
        )

    def records(self) -> list[Any]:
        return self.broker.records(MAIN)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def late() -> LateProducer:
    return LateProducer()


def test_a_job_is_published_to_its_queue_keyed_by_tenant(bench: Bench) -> None:
    published = bench.publisher.publish(MAIL, Mail(to="ann"), tenant="acme", ordering_key="order-1")
    (record,) = bench.records()
    assert (published.topic, published.partition, published.offset) == record.source
    assert (record.key, record.value) == (b"acme", b'{"to":"ann","size":0}')
    job, problem = parse_job(record, queue="default")
    assert problem == ""
    assert (job.job_id, job.job_type, job.tenant, job.ordering_key) == (
        published.job_id,
        "email.send",
        "acme",
        "order-1",
    )
    assert (job.publisher, job.enqueued_at, job.attempt, job.hop) == ("shop", NOW, 1, 0)
    assert uuid.UUID(job.job_id).version == 7
    assert bench.counts.seen == {"enqueued": 1}


@pytest.mark.parametrize("payload", [Mail(to="ann", size=3), {"to": "ann", "size": "3"}])
@pytest.mark.parametrize("job_type", [MAIL, "email.send", JobType(name="email.send", model=Mail)])
def test_a_type_may_be_named_and_a_payload_be_a_mapping(bench: Bench, job_type: Any, payload: Any) -> None:
    bench.publisher.publish(job_type, payload, tenant="acme")
    assert [record.value for record in bench.records()] == [b'{"to":"ann","size":3}']


def test_an_idempotency_key_gives_the_same_job_again(bench: Bench) -> None:
    ids = {
        bench.publisher.publish(MAIL, Mail(to="ann"), tenant=tenant, idempotency_key=key).job_id
        for tenant, key in [
            ("acme", "order-42"),
            ("acme", "order-42"),
            ("acme", "order-43"),
            ("globex", "order-42"),
        ]
    }
    assert len(ids) == 3
    assert len(bench.records()) == 4


BAD: list[tuple[dict[str, Any], type[InvalidJob], str]] = [
    (
        {"job_type": "email.sent"},
        UnknownJobType,
        r"job type 'email.sent' is not declared; declared: email.send, ",
    ),
    ({"job_type": ""}, UnknownJobType, "job type '' is not declared"),
    ({"job_type": None}, InvalidJob, "job type is a NoneType; allowed: a JobType, or its name"),
    ({"job_type": Mail}, InvalidJob, "job type is a ModelMetaclass; allowed"),
    ({"job_type": JobType(name="other", model=Mail)}, UnknownJobType, "job type 'other' is not declared"),
    (
        {"job_type": JobType(name="email.send", model=Picky)},
        UnknownJobType,
        "'email.send' is another one than",
    ),
    (
        {"job_type": GPU},
        UnknownQueue,
        r"queue of job type 'image.scale' is 'gpu'; allowed by the setting queues: default",
    ),
    ({"tenant": ""}, InvalidJob, "tenant is empty; allowed: 1 to 256 characters"),
    ({"tenant": "a\nb"}, InvalidJob, "tenant has control characters; allowed"),
    ({"tenant": "a\ud800"}, InvalidJob, "tenant has control characters; allowed"),
    ({"tenant": "x" * 257}, InvalidJob, "tenant has 257 characters; allowed: at most 256"),
    ({"tenant": 7}, InvalidJob, "tenant is a int; allowed: text"),
    ({"tenant": None}, InvalidJob, "tenant is a NoneType; allowed: text"),
    ({"tenant": b"acme"}, InvalidJob, "tenant is a bytes; allowed: text"),
    ({"idempotency_key": ""}, InvalidJob, "idempotency_key is empty"),
    ({"idempotency_key": "x" * 513}, InvalidJob, "idempotency_key has 513 characters"),
    ({"idempotency_key": "\x00"}, InvalidJob, "idempotency_key has control characters"),
    ({"idempotency_key": 42}, InvalidJob, "idempotency_key is a int; allowed: text"),
    ({"ordering_key": ""}, InvalidJob, "ordering_key is empty"),
    ({"ordering_key": "x" * 257}, InvalidJob, "ordering_key has 257 characters"),
    (
        {"payload": {"to": 7}},
        InvalidJob,
        r"payload of job type 'email.send': to: Input should be a valid string",
    ),
    ({"payload": {}}, InvalidJob, "to: Field required"),
    ({"payload": {"to": "x", "size": "many"}}, InvalidJob, "size: Input should be a valid integer"),
    ({"payload": None}, InvalidJob, "payload of job type 'email.send': payload: Input should be"),
    ({"payload": "text"}, InvalidJob, "payload of job type 'email.send': payload: Input should be"),
    ({"payload": Picky(to="ann")}, InvalidJob, "payload of job type 'email.send' is a Picky; allowed: Mail"),
    ({"payload": {"to": "nobody"}}, InvalidJob, "field 'to' cannot be written"),
    ({"payload": {"to": "x" * 2000}}, PayloadTooLarge, "bytes; allowed: at most 1000"),
    ({"job_type": "picky", "payload": {"to": "bob"}}, InvalidJob, "'picky': its validator raised KeyError"),
]


@pytest.mark.parametrize(("values", "error", "message"), BAD)
class TestBadInput:
    def test_it_is_named_and_nothing_is_sent(
        self, bench: Bench, values: Mapping[str, Any], error: type[InvalidJob], message: str
    ) -> None:
        given_values = {"job_type": MAIL, "payload": Mail(to="ann"), "tenant": "acme", **values}
        job_type, payload = given_values.pop("job_type"), given_values.pop("payload")
        with pytest.raises(error, match=message):
            bench.publisher.publish(job_type, payload, **given_values)
        with pytest.raises(error, match=message):
            bench.publisher.publish_async(job_type, payload, **given_values)
        assert bench.records() == []
        assert bench.counts.seen == {}

    def test_in_many_it_is_reported_in_its_place_and_the_others_are_sent(
        self, bench: Bench, values: Mapping[str, Any], error: type[InvalidJob], message: str
    ) -> None:
        fine = JobRequest(MAIL, Mail(to="ann"), "acme")
        result = bench.publisher.publish_many([fine, fine._replace(**values), fine])
        (refused,) = result.refused
        assert refused.position == 1
        assert type(refused.error) is error
        assert re.search(message, str(refused.error))
        assert len(result.job_ids) == len(bench.records()) == 2


TEXTS = st.text(st.characters(), max_size=300)


@given(tenant=TEXTS, key=st.none() | TEXTS, ordering=st.none() | TEXTS, source=TEXTS)
def test_what_is_accepted_can_be_read_by_a_worker(
    tenant: str, key: str | None, ordering: str | None, source: str
) -> None:
    """No publisher may write what every worker would send to the dead letters."""
    bench = Bench(source=source)
    try:
        bench.publisher.publish(MAIL, Mail(to="a"), tenant=tenant, idempotency_key=key, ordering_key=ordering)
    except InvalidJob:
        return
    (record,) = bench.records()
    job, problem = parse_job(record, queue="default")
    assert problem == ""
    assert (job.tenant, job.ordering_key) == (tenant, ordering or "")


class TestWithoutAnAnswer:
    def test_a_publish_without_an_acknowledgement_in_time_is_unknown(self, late: LateProducer) -> None:
        bench = Bench(late)
        with pytest.raises(
            PublishUnknown, match=r"no acknowledgement within 0.05 s; the job may still arrive"
        ):
            bench.publisher.publish(MAIL, Mail(to="ann"), tenant="acme")
        assert len(late.sent) == 1
        late.end(0)
        assert bench.counts.seen == {"enqueued": 1}, "it did arrive"

    def test_a_write_that_ended_without_an_answer_is_unknown(self, late: LateProducer) -> None:
        future = Bench(late).publisher.publish_async(MAIL, Mail(to="ann"), tenant="acme")
        late.sent[0][1](Delivered(None, None))
        with pytest.raises(PublishUnknown):
            future.result(0)

    @pytest.mark.parametrize(
        "error", [PublishFailed("refused"), PublishUnknown("lost"), BrokerUnavailable("away")]
    )
    def test_a_write_that_failed_raises_why(self, late: LateProducer, error: Exception) -> None:
        bench = Bench(late)
        future = bench.publisher.publish_async(MAIL, Mail(to="ann"), tenant="acme")
        late.end(0, error)
        with pytest.raises(type(error)) as caught:
            future.result(0)
        assert caught.value is error
        assert bench.counts.seen == {}

    def test_a_full_buffer_raises_at_once(self, late: LateProducer) -> None:
        late.refuses = PublishFailed("the local buffer is full")
        with pytest.raises(PublishFailed, match="buffer is full"):
            Bench(late).publisher.publish(MAIL, Mail(to="ann"), tenant="acme")

    def test_a_future_cannot_be_called_back(self, late: LateProducer) -> None:
        """The job is on its way: a cancelled future would say that it was not sent."""
        future = Bench(late).publisher.publish_async(MAIL, Mail(to="ann"), tenant="acme")
        assert not future.cancel()
        late.end(0)
        assert future.result(0).offset == 0


class TestMany:
    def test_each_failure_is_reported_with_its_place(self, late: LateProducer) -> None:
        bench = Bench(late)
        requests = [JobRequest(MAIL, Mail(to=str(number)), "acme", f"key-{number}") for number in range(6)]
        requests[2] = requests[2]._replace(tenant="")

        def answer() -> None:
            ends: list[Exception | None] = [None, PublishFailed("no"), OSError("odd"), None]
            for index, error in enumerate(ends):
                late.end(index, error)

        late.on_flush = answer
        result = bench.publisher.publish_many(requests)
        assert [(refused.position, type(refused.error)) for refused in result.refused] == [
            (1, PublishFailed),
            (2, InvalidJob),
            (3, PublishUnknown),
            (5, PublishUnknown),
        ]
        assert all(refused.request is requests[refused.position] for refused in result.refused)
        ids = [parse_job_id(record) for record, _ in late.sent]
        assert result.job_ids == [ids[0], ids[3]]
        assert bench.counts.seen == {"enqueued": 2}

    def test_ends_that_come_while_the_result_is_made_up_do_no_harm(self, late: LateProducer) -> None:
        """The time is over and the broker wakes up: callbacks come from another thread meanwhile."""
        bench, started = Bench(late), threading.Event()

        def wake_up() -> None:
            started.set()
            for index in range(len(late.sent)):
                late.end(index, PublishFailed("late") if index % 2 else None)

        thread = threading.Thread(target=wake_up)

        def begin() -> None:
            thread.start()
            started.wait(10)

        late.on_flush = begin
        result = bench.publisher.publish_many(JobRequest(MAIL, Mail(to="a"), "acme") for _ in range(4_000))
        thread.join()
        assert len(result.job_ids) + len(result.refused) == 4_000
        assert len({refused.position for refused in result.refused}) == len(result.refused)

    @pytest.mark.parametrize("request_given", [None, ("email.send", {}, "acme"), {"tenant": "acme"}])
    def test_what_is_no_request_is_refused_like_any_other(self, bench: Bench, request_given: Any) -> None:
        result = bench.publisher.publish_many([JobRequest(MAIL, Mail(to="a"), "acme"), request_given])
        (refused,) = result.refused
        assert (refused.position, type(refused.error)) == (1, InvalidJob)
        assert len(result.job_ids) == 1

    def test_nothing_is_published_from_nothing(self, bench: Bench) -> None:
        assert bench.publisher.publish_many([]) == ([], [])

    def test_requests_are_taken_one_by_one(self, bench: Bench) -> None:
        def requests() -> Iterator[JobRequest]:
            yield JobRequest(MAIL, Mail(to="a"), "acme")
            assert len(bench.records()) == 1
            yield JobRequest(MAIL, Mail(to="b"), "acme")

        assert len(bench.publisher.publish_many(requests()).job_ids) == 2


def parse_job_id(record: Outgoing) -> str:
    return (dict(record.headers)["ce_id"] or b"").decode()


def test_a_schema_is_announced_before_its_first_job_and_may_refuse_it() -> None:
    def announce(job_type: str) -> None:
        raise BrokerUnavailable(f"{job_type}: away")

    bench = Bench(announce=announce)
    with pytest.raises(BrokerUnavailable, match=r"email.send: away"):
        bench.publisher.publish(MAIL, Mail(to="ann"), tenant="acme")
    assert bench.records() == []


def test_closing_flushes_what_was_handed_over(late: LateProducer) -> None:
    with Bench(late, timeout=3).publisher as publisher:
        publisher.publish_async(MAIL, Mail(to="ann"), tenant="acme")
    assert late.flushed == [3]
    assert late.closed


def test_ids_of_new_jobs_differ_in_every_thread() -> None:
    bench = Bench()
    ids: list[str] = []

    def publish() -> None:
        ids.extend(bench.publisher.publish(MAIL, Mail(to="a"), tenant="acme").job_id for _ in range(500))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 2000
