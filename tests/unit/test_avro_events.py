"""The hand-written encoder of lifecycle events against a general decoder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.adapters.avro.events import decode_event, encode_breaker_event, encode_event
from pipeline.core.events import BreakerChange, Trail
from pipeline.core.job import Job
from pipeline.core.state import TRANSITIONS
from pipeline.errors import PayloadError

text = st.text(st.characters(codec="utf-8"), max_size=300)
counts = st.integers(0, 2**31 - 1)
times = st.floats(0, 9_214_646_400.0)
steps = st.sampled_from([(previous, trigger, state) for (previous, trigger), state in TRANSITIONS.items()])


@st.composite
def trails(draw: st.DrawFn) -> Trail:
    names = st.tuples(text, text, text, text)
    job = Job(*draw(names), attempt=draw(counts), hop=draw(counts))
    endings = st.tuples(times, st.none() | st.floats(0, 1e6), text, text)
    told = [(*draw(steps), *draw(endings)) for _ in range(draw(st.integers(1, 4)))]
    return Trail(job, draw(text), draw(st.integers(0, 2**63 - 1)), told)


@given(trails())
def test_every_event_reads_back_with_the_schema_as_it_was_written(trail: Trail) -> None:
    event = decode_event(encode_event(trail))
    moves = trail.moves()
    for name in ("job_id", "job_type", "tenant", "queue", "worker", "attempt", "hop", "token"):
        assert event[name] == getattr(moves[0], name)
    for written, read in zip(moves, event["moves"], strict=True):
        assert (read["previous"], read["trigger"], read["state"]) == (
            written.previous,
            written.trigger,
            written.state,
        )
        assert (read["duration"], read["reason"]) == (written.duration, written.reason)
        assert read["error_class"] == written.error_class
        expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(written.at * 1_000_000))
        assert read["at"] == expected


@given(texts=st.lists(text, min_size=7, max_size=7), at=times, opened=st.integers(0, 2**63 - 1))
def test_changes_of_breakers_read_back_as_they_were_written(texts: list[str], at: float, opened: int) -> None:
    change = BreakerChange._make((*texts, at, opened))
    event = decode_event(encode_breaker_event(change))
    assert event.pop("at") == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(at * 1_000_000))
    assert event == {name: value for name, value in change._asdict().items() if name != "at"}


@pytest.mark.parametrize("data", [b"", b"\xc3\x01", b"\xc3\x01" + b"\x00" * 40, b'{"job_id": 1}'])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode_event(data)


def test_an_event_that_ends_early_is_refused() -> None:
    previous, trigger, state = next((p, t, s) for (p, t), s in TRANSITIONS.items())
    job = Job("id", "a.b", "acme", "default")
    whole = encode_event(Trail(job, "w", 1, [(previous, trigger, state, 1.8e9, None, "", "")]))
    for length in range(10, len(whole)):
        with pytest.raises(PayloadError):
            decode_event(whole[:length])
