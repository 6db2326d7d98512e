"""The producer: idempotent, and the end of every write is told.

A thread of its own polls for delivery reports; callbacks run there. Four traps are handled here:
- a record over the topic's limit fails the whole batch it shares, so sizes are checked before, and the records of a
  batch refused as too large are written again, each in a batch of its own: only the guilty one fails;
- a fatal error ends a librdkafka producer for good, so a new one takes its place;
- a librdkafka producer may never write again after an outage, and only tell of writes that timed out: it forgets how to find
  a cluster whose last broker answered, while it shut down, that there are none (librdkafka 5301). When nothing else was heard
  of it for a while, though a fresh client finds the cluster, that one takes its place;
- the local buffer can fill: then `send` waits for room, with a bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pipeline.adapters.kafka.config import Conf, construct, delivery_timeout
from pipeline.adapters.kafka.failures import TOO_LARGE, ClientLog, delivery_error, describe, logger
from pipeline.core.job import Source
from pipeline.core.ports import Delivered, KeyedValue, Outgoing, tell_end
from pipeline.errors import PayloadTooLarge, PublishFailed, PublishUnknown

__all__ = ["KafkaJobProducer"]

OnDelivery = Callable[[Delivered], None]
Report = Callable[[KafkaError | None, Message], None]

_POLL_SECONDS = 0.1
_LEAST_PATIENCE = 10.0  # with a producer that only tells of writes that timed out
_PROBE_SECONDS = 2.0
_LARGEST_BATCH = 1_000_000  # librdkafka's own
# What a batch with one record adds to its bytes, at most: 61 of batch header, 31 of varints, 10 for each header.
_RECORD_OVERHEAD = 92
_HEADER_OVERHEAD = 10


class KafkaJobProducer:
    """`JobProducer` on librdkafka. `config` comes from `producer_config`.

    `max_message_bytes` is the largest record that may be written, `max_batch_bytes` the smallest limit of the topics
    that are written to (by default the same): a batch above a topic's limit is refused, and although its records are
    written again, they have lost their place in the order.
    """

    def __init__(
        self,
        config: Conf,
        *,
        max_message_bytes: int = 1_048_576,
        max_batch_bytes: int | None = None,
        buffer_timeout: float = 5.0,
    ) -> None:
        batch = min(max_batch_bytes or max_message_bytes, _LARGEST_BATCH)
        # librdkafka allows no smaller limit than 1000; ours is checked before.
        limits = {"message.max.bytes": str(max(max_message_bytes, 1000)), "batch.size": str(batch)}
        self._config: Conf = {**limits, **config}
        self._log = ClientLog()
        self._max_bytes = max_message_bytes
        self._buffer_timeout = buffer_timeout
        # librdkafka ends every write in time; a record that is written again alone takes that time twice.
        self._longest = 2 * delivery_timeout(config) + 5
        self._stall = _Stall(patience=max(_LEAST_PATIENCE, delivery_timeout(config)))
        self._changed = threading.Condition()  # guards what follows; told when writes have ended
        self._waiting = 0
        self._sent = 0
        self._ended = 0  # only the producer's thread counts here
        self._closed = False
        self._retired: list[Producer] = []
        self._alone: deque[tuple[Outgoing, OnDelivery | None]] = deque()  # only for the producer's thread
        self._stop = threading.Event()
        self._producer = construct(Producer, self._config, self._log)
        self._poller = threading.Thread(target=self._run, name="kafka-producer", daemon=True)
        self._poller.start()

    def send(self, record: Outgoing, on_delivery: OnDelivery | None = None) -> None:
        """See `JobProducer.send`."""
        self._start(record, partial(self._reported, record, on_delivery), self._buffer_timeout)

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        """See `JobProducer.send_all`."""
        batch = _Batch(records)
        patience = self._buffer_timeout
        for index, record in enumerate(records):
            try:
                self._start(record, partial(self._reported_in, batch, index), patience)
            except PayloadTooLarge as error:
                batch.refuse(index, error)
            except PublishFailed as error:
                batch.refuse(index, error)
                patience = 0.0  # waited once for room: the rest do not each wait again
        with self._changed:
            self._wait(batch.is_complete, self._longest)
        return batch.finished()

    def send_many(
        self,
        topic: str,
        records: Sequence[KeyedValue],
        *,
        on_acknowledged: Callable[[], None],
        on_refused: Callable[[KeyedValue, Exception], None],
    ) -> None:
        """See `ManyProducer.send_many`. One call and one callback serve them all: this is on the path of every job."""

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._written()
                on_acknowledged()
            else:  # a report has what was sent, but for headers: there are none
                record = (message.key() or b"", message.value() or b"")
                end = partial(tell_end, record, on_acknowledged, on_refused)
                self._reported(Outgoing(topic, *record, []), end, error, message)

        for record in self._batched(topic, records, report):
            try:
                self._start(Outgoing(topic, *record, []), report, self._buffer_timeout)
            except (PayloadTooLarge, PublishFailed) as refusal:
                on_refused(record, refusal)

    def _batched(self, topic: str, records: Sequence[KeyedValue], report: Report) -> list[KeyedValue]:
        """Hand over in one go what the client takes so; give the others, which need a second look each."""
        largest = self._max_bytes - _RECORD_OVERHEAD
        batch = [{"key": key, "value": value} for key, value in records if len(key) + len(value) <= largest]
        left = [(key, value) for key, value in records if len(key) + len(value) > largest]
        with self._changed:
            if self._closed:
                return list(records)
            self._sent += len(batch)
        taken = 0
        try:
            taken = self._producer.produce_batch(topic, batch, on_delivery=report)
        except (BufferError, KafkaException) as error:
            logger.warning("events not taken at once: %s", error, extra={"action": "batch_refused"})
        if taken < len(batch):
            with self._changed:
                self._sent -= len(batch) - taken
            left += [(each["key"], each["value"]) for each in batch if taken == 0 or "_error" in each]
        return left

    def flush(self, timeout: float) -> int:
        """See `JobProducer.flush`."""
        with self._changed:
            self._wait(lambda: self._ended >= self._sent, timeout)
            return self._sent - self._ended

    def close(self, timeout: float = 5.0) -> None:
        """Wait up to `timeout` seconds for what is under way, give up the rest (each is told), and stop."""
        with self._changed:
            self._closed = True
        if self.flush(timeout):
            for producer in (self._producer, *self._retired):
                producer.purge()
            self.flush(timeout)
        self._stop.set()
        self._poller.join()

    # --- on the threads of callers

    def _start(self, record: Outgoing, report: Report, patience: float) -> None:
        self._check_size(record)
        with self._changed:
            if self._closed:
                raise PublishFailed(f"topic {record.topic} did not take the record: the producer is closed")
            self._sent += 1
        try:
            self._hand_over(record, report, patience)
        except BaseException:
            with self._changed:
                self._sent -= 1
            raise

    def _check_size(self, record: Outgoing) -> None:
        _, key, value, headers = record
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        for name, content in headers:
            size += _HEADER_OVERHEAD + len(name) + len(content or b"")
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"the record for topic {record.topic} has {size} bytes; allowed: at most {self._max_bytes}"
            )

    def _hand_over(self, record: Outgoing, report: Report, patience: float) -> None:
        deadline = 0.0
        while True:
            producer = self._producer
            try:
                _produce(producer, record, report)
            except BufferError:
                deadline = deadline or time.monotonic() + patience
                self._wait_for_room(deadline)
            except KafkaException as error:
                self._refused(producer, record, error.args[0])
            else:
                return

    def _wait_for_room(self, deadline: float) -> None:
        with self._changed:
            ended = self._ended
            if not self._wait(lambda: self._ended > ended, deadline - time.monotonic()):
                raise PublishFailed(
                    f"the local buffer was full for {self._buffer_timeout:g} s: Kafka is away or does not keep up"
                )

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait_for(condition, timeout)
        finally:
            self._waiting -= 1

    def _refused(self, producer: Producer, record: Outgoing, error: KafkaError) -> None:
        """The client took no record. Returns when a new producer is there to try."""
        if error.code() == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's own codes are spelt so
            self._replace(producer)
        elif error.code() in TOO_LARGE:
            raise PayloadTooLarge(
                f"the record for topic {record.topic} is too large; allowed: at most {self._max_bytes} bytes"
            )
        else:
            raise PublishFailed(f"topic {record.topic} did not take the record: {describe(error)}")

    def _replace(self, producer: Producer) -> None:
        with self._changed:
            if self._producer is producer:  # else another thread did it
                self._put_in_place(
                    construct(Producer, self._config, self._log), "a fatal error ended the producer"
                )

    def _put_in_place(self, fresh: Producer, why: str) -> None:
        with self._changed:
            self._retired.append(self._producer)
            self._producer = fresh
        logger.error("%s: a new one took its place", why, extra={"action": "producer_replaced"})

    def _replace_stalled(self) -> None:
        """Writes time out, and nothing else: if that is for want of a cluster, a new producer would not find it either."""
        fresh = construct(Producer, self._config, self._log)
        try:
            fresh.list_topics(timeout=_PROBE_SECONDS)
        except KafkaException:
            return
        self._put_in_place(fresh, "the producer wrote nothing any more while Kafka answers")

    # --- on the producer's thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self._poll(self._producer, _POLL_SECONDS)
            if self._alone:
                self._write_alone()
            if self._stall.is_over():
                self._replace_stalled()
            for retired in tuple(self._retired):
                self._poll(retired, 0)
            with self._changed:
                self._retired = [retired for retired in self._retired if len(retired)]
                if self._waiting:
                    self._changed.notify_all()

    def _poll(self, producer: Producer, timeout: float) -> None:
        try:
            producer.poll(timeout)
        except KafkaException as error:  # a fatal error is raised here, once; the reports come after it
            logger.error("the producer failed: %s", describe(error), extra={"action": "producer_failed"})
            self._replace(producer)

    def _write_alone(self) -> None:
        """Write each record in a batch of its own. Rare, and reports of other records wait for it."""
        single = construct(Producer, {**self._config, "batch.num.messages": "1"}, self._log)
        while self._alone or len(single):
            while self._alone and len(single) < 1000:
                record, on_delivery = self._alone.popleft()
                try:
                    _produce(single, record, partial(self._reported_alone, record, on_delivery))
                except KafkaException as error:
                    self._end(on_delivery, self._failed(error.args[0], record))
            self._poll(single, _POLL_SECONDS)

    def _reported(
        self, record: Outgoing, on_delivery: OnDelivery | None, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            self._stall.since = 0.0
            self._end(on_delivery, _delivered(record, message))
        elif error.code() in TOO_LARGE:
            self._alone.append((record, on_delivery))
        else:
            self._stall.note(error, time.monotonic())
            self._end(on_delivery, self._failed(error, record))

    def _reported_in(self, batch: _Batch, index: int, error: KafkaError | None, message: Message) -> None:
        """The same for `send_all`, at the price of one call."""
        if error is None:
            batch.put(index, _delivered(batch.records[index], message))
            self._written()
        else:
            self._reported(batch.records[index], partial(batch.put, index), error, message)

    def _written(self) -> None:
        """A write that nothing is wrong with, and so with the producer."""
        self._stall.since = 0.0
        self._ended += 1

    def _reported_alone(
        self, record: Outgoing, on_delivery: OnDelivery | None, error: KafkaError | None, message: Message
    ) -> None:
        self._end(on_delivery, self._failed(error, record) if error else _delivered(record, message))

    def _failed(self, error: KafkaError, record: Outgoing) -> Delivered:
        bootstrap = self._config["bootstrap.servers"]
        return Delivered(None, delivery_error(error, record.topic, bootstrap=bootstrap))

    def _end(self, on_delivery: OnDelivery | None, delivered: Delivered) -> None:
        try:
            if on_delivery is not None:
                on_delivery(delivered)
        except Exception:  # noqa: BLE001 - logged with its traceback
            # The thread serves all writes: one caller's error must not end it.
            logger.exception("a delivery callback failed", extra={"action": "delivery_callback_failed"})
        finally:
            self._ended += 1


def _produce(producer: Producer, record: Outgoing, report: Report) -> None:
    topic, key, value, headers = record
    producer.produce(topic, value, key, headers=headers, on_delivery=report)  # type: ignore[arg-type]  # list is invariant


def _delivered(record: Outgoing, message: Message) -> Delivered:
    source = Source(record.topic, message.partition(), message.offset())  # type: ignore[arg-type]  # given on success
    return Delivered(source, None)


class _Stall:
    """For how long writes have only timed out, one after the other. Only for the producer's thread."""

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._last = 0.0
        self.since = 0.0  # 0: the last write that ended did so otherwise

    def note(self, error: KafkaError, now: float) -> None:
        timed_out = error.code() == KafkaError._MSG_TIMED_OUT  # noqa: SLF001 - librdkafka's own codes are spelt so
        self.since = (self.since or now) if timed_out else 0.0
        self._last = now

    def is_over(self) -> bool:
        """Whether they have for longer than the time of patience; then that begins anew."""
        if not self.since or self._last - self.since < self._patience:
            return False
        self.since = self._last
        return True


_UNDER_WAY = Delivered(None, None)


class _Batch:
    """Records written together, and their ends in the same order."""

    def __init__(self, records: Sequence[Outgoing]) -> None:
        self.records = records
        self.ends: list[Delivered] = [_UNDER_WAY] * len(records)
        self._reported = 0  # counted by the producer's thread
        self._refused = 0  # counted by the caller's

    def put(self, index: int, delivered: Delivered) -> None:
        self.ends[index] = delivered
        self._reported += 1

    def refuse(self, index: int, error: PayloadTooLarge | PublishFailed) -> None:
        self.ends[index] = Delivered(None, error)
        self._refused += 1

    def finished(self) -> list[Delivered]:
        """The ends; a write that never ended is unknown."""
        unknown = Delivered(None, PublishUnknown("the client never told how the write ended"))
        return [unknown if end == _UNDER_WAY else end for end in self.ends]

    def is_complete(self) -> bool:
        return self._reported + self._refused == len(self.records)
