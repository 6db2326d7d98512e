"""What a worker and its children say to each other arrives as it was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.job import Job, Source
from pipeline.core.outcome import Failure, Outcome
from pipeline.runtime.executors.wire import (
    JobOrder,
    Kind,
    pack,
    pack_job,
    pack_outcome,
    unpack,
    unpack_job,
    unpack_outcome,
)

texts = st.text(max_size=20)
times = st.floats(0, 1e10)
jobs = st.builds(
    Job,
    *[texts] * 4,
    enqueued_at=times,
    not_before=times,
    expires_at=times,
    attempt=st.integers(1, 9),
    schema_id=st.binary(max_size=9),
)
orders = st.builds(
    JobOrder,
    jobs,
    st.builds(Source, texts, st.integers(0, 99), st.integers(0)),
    st.integers(1),
    times,
    times,
    st.binary(max_size=50),
)
st.register_type_strategy(Failure, st.builds(Failure, texts, texts, texts))
outcomes: st.SearchStrategy[Outcome] = st.from_type(Outcome)  # type: ignore[arg-type]


@given(orders)
def test_a_job_arrives_with_its_payload_untouched(order: JobOrder) -> None:
    kind, body = unpack(pack_job(order))
    assert kind is Kind.JOB
    assert unpack_job(body) == order


@given(outcomes)
def test_every_outcome_arrives(outcome: Outcome) -> None:
    kind, data = unpack(pack_outcome(outcome))
    assert kind is Kind.ENDED
    arrived = unpack_outcome(data)
    assert repr(arrived) == repr(outcome)  # NaN among the delays is no reason to differ


def test_what_was_never_said_is_refused() -> None:
    assert unpack(pack(Kind.LEASE, True)) == (Kind.LEASE, True)
    with pytest.raises(ValueError, match="Kind"):
        unpack(b"?{}")
