"""When a producer counts as one that will never write again."""

from __future__ import annotations

from confluent_kafka import KafkaError

from pipeline.adapters.kafka.producer import _Stall

TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_writes_that_only_time_out_for_longer_than_the_patience_are_a_stall_and_patience_begins_anew() -> (
    None
):
    stall = _Stall(patience=10)
    for at in (100.0, 105.0, 109.9):
        stall.note(TIMED_OUT, at)
        assert not stall.is_over()
    stall.note(TIMED_OUT, 110.0)
    assert stall.is_over()
    assert not stall.is_over()
    stall.note(TIMED_OUT, 120.0)
    assert stall.is_over()


def test_one_write_that_timed_out_is_no_stall_however_long_ago() -> None:
    stall = _Stall(patience=10)
    stall.note(TIMED_OUT, 100.0)
    assert not stall.is_over()


def test_any_other_end_of_a_write_ends_a_stall() -> None:
    stall = _Stall(patience=10)
    stall.note(TIMED_OUT, 100.0)
    stall.note(REFUSED, 105.0)
    stall.note(TIMED_OUT, 111.0)
    assert not stall.is_over()
    stall.since = 0.0  # a success
    stall.note(TIMED_OUT, 130.0)
    assert not stall.is_over()
