"""The audit trail: sent after the move was stored, acknowledged before its offset is committed, and sent again when refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pipeline.core.events import Move, Trail
from pipeline.core.job import Job
from pipeline.core.ports import KeyedValue
from pipeline.core.state import JobState, Trigger
from pipeline.errors import PublishFailed
from pipeline.runtime import events as module
from pipeline.runtime.events import EventSink


class LateProducer:
    """Keeps what it is given until it is told how each write ended."""

    def __init__(self) -> None:
        self.sent: list[tuple[KeyedValue, Callable[[], None], Callable[[KeyedValue, Exception], None]]] = []
        self.full = False

    def send_many(
        self,
        topic: str,
        records: Sequence[KeyedValue],
        *,
        on_acknowledged: Callable[[], None],
        on_refused: Callable[[KeyedValue, Exception], None],
    ) -> None:
        assert topic == "jobs.events"
        for record in records:
            if self.full:
                on_refused(record, PublishFailed("the local buffer is full"))
            else:
                self.sent.append((record, on_acknowledged, on_refused))

    def end(self, error: Exception | None = None) -> None:
        """End the oldest write."""
        record, on_acknowledged, on_refused = self.sent.pop(0)
        if error is None:
            on_acknowledged()
        else:
            on_refused(record, error)

    def values(self) -> list[KeyedValue]:
        return [record for record, _, _ in self.sent]


class Bench:
    def __init__(self) -> None:
        self.producer = LateProducer()
        self.logged: list[Move] = []
        self.sink = EventSink(
            producer=self.producer,
            topic="jobs.events",
            encode=lambda trail: " ".join(move.state.value for move in trail.moves()).encode(),
            write_log=self._log,
        )

    def _log(self, trails: Sequence[Trail]) -> None:
        self.logged += [move for trail in trails for move in trail.moves()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def moved(job_id: str, state: JobState) -> Trail:
    job = Job(job_id, "email.send", "acme", "default")
    return Trail(job, "w", 1, [(JobState.QUEUED, Trigger.SUCCESS, state, 1.0, None, "", "")])


RUNNING, DONE = JobState.RUNNING, JobState.COMPLETED


def test_the_moves_of_a_job_that_is_soon_done_travel_in_one_record(bench: Bench) -> None:
    bench.sink.claimed([moved("a", RUNNING), moved("b", RUNNING)])
    assert bench.producer.sent == []
    bench.sink.settled([moved("a", DONE)])
    assert bench.producer.values() == [(b"a", b"running completed")]
    assert len(bench.logged) == 3, "the log is told at once"


def test_what_runs_for_longer_is_told_when_a_period_is_sealed(bench: Bench) -> None:
    bench.sink.claimed([moved("a", RUNNING)])
    bench.sink.seal()
    assert bench.producer.values() == [(b"a", b"running")]
    bench.sink.settled([moved("a", DONE)])
    assert bench.producer.values()[1:] == [(b"a", b"completed")]


def test_a_period_is_acknowledged_when_everything_of_it_and_before_is(bench: Bench) -> None:
    bench.sink.settled([moved("a", DONE)])
    first = bench.sink.seal()
    bench.sink.settled([moved("b", DONE)])
    second = bench.sink.seal()
    assert not bench.sink.acknowledged(first)
    bench.producer.sent.reverse()
    bench.producer.end()
    assert not bench.sink.acknowledged(second), "the first is still on its way"
    bench.producer.end()
    assert bench.sink.acknowledged(first)
    assert bench.sink.acknowledged(second)


def test_what_is_no_move_of_a_job_is_written_at_once_and_belongs_to_its_period(bench: Bench) -> None:
    bench.sink.note("email.send", b"opened")
    assert bench.producer.values() == [(b"email.send", b"opened")]
    period = bench.sink.seal()
    assert not bench.sink.acknowledged(period)
    bench.producer.end()
    assert bench.sink.acknowledged(period)
    assert bench.logged == []


def test_an_empty_period_is_acknowledged_at_once(bench: Bench) -> None:
    assert bench.sink.acknowledged(bench.sink.seal())


@pytest.mark.parametrize("how", ["refused", "full"])
def test_what_was_refused_is_sent_again_and_not_acknowledged_before(bench: Bench, how: str) -> None:
    bench.producer.full = how == "full"
    bench.sink.settled([moved("a", DONE)])
    bench.producer.full = False
    if how == "refused":
        bench.producer.end(PublishFailed("no"))
    period = bench.sink.seal()
    assert not bench.sink.acknowledged(period)
    assert bench.producer.values() == [(b"a", b"completed")]
    bench.producer.end()
    assert bench.sink.acknowledged(period)


def test_an_outage_without_end_gives_events_up_rather_than_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_AGAIN", 2)
    bench.sink.settled([moved(name, DONE) for name in "abcd"])
    period = bench.sink.seal()
    for _ in range(4):
        bench.producer.end(PublishFailed("no"))
    bench.sink.seal()
    assert len(bench.producer.sent) == 2
    bench.producer.end()
    bench.producer.end()
    assert bench.sink.acknowledged(period)
