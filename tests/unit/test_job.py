"""Job ids: time-ordered when new, and the same ones again for the same idempotency key."""

from __future__ import annotations

import os
import uuid

from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.core.job import EPOCH_LIMIT, Record, Source, idempotent_job_id, new_job_id, source_job_id

NOW = 1_800_000_000.123
TIMES = st.floats(0, EPOCH_LIMIT)
ENTROPY = st.binary(min_size=10, max_size=10)
TEXTS = st.text(max_size=12)
KEYS = st.tuples(TEXTS, TEXTS, TEXTS)


def keyed(parts: tuple[str, str, str]) -> str:
    return idempotent_job_id(tenant=parts[0], job_type=parts[1], key=parts[2])


@given(now=TIMES, entropy=ENTROPY)
def test_a_uuid7_has_the_layout_of_rfc_9562(now: float, entropy: bytes) -> None:
    made = uuid.UUID(new_job_id(now=now, entropy=entropy))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(now * 1000)
    drawn = int.from_bytes(entropy, "big")
    assert (made.int >> 64) & 0xFFF == (drawn >> 64) & 0xFFF, "12 bits of chance beside the version"
    assert made.int & (1 << 62) - 1 == drawn & (1 << 62) - 1, "62 bits of chance beside the variant"


@given(now=TIMES, later=st.floats(0.001, 1e6), first=ENTROPY, second=ENTROPY)
def test_ids_of_later_milliseconds_sort_later(now: float, later: float, first: bytes, second: bytes) -> None:
    assume(int(now * 1000) < int((now + later) * 1000) < 1 << 48)
    assert new_job_id(now=now, entropy=first) < new_job_id(now=now + later, entropy=second)


def test_ids_of_one_moment_differ() -> None:
    assert len({new_job_id(now=NOW, entropy=os.urandom(10)) for _ in range(10_000)}) == 10_000


@given(KEYS)
def test_the_same_key_gives_the_same_uuid5(parts: tuple[str, str, str]) -> None:
    assert keyed(parts) == keyed(parts)
    assert uuid.UUID(keyed(parts)).version == 5


@given(KEYS, KEYS)
def test_other_parts_give_another_id(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (keyed(one) == keyed(other)) == (one == other)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.data())
def test_moving_a_boundary_between_the_parts_gives_another_id(
    parts: tuple[str, str, str], data: st.DataObject
) -> None:
    """Also when the parts look like the lengths that stand before them."""
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(joined))] * 2)))
    cut = (joined[:first], joined[first:second], joined[second:])
    assume(cut != parts)
    assert keyed(cut) != keyed(parts)


def test_an_idempotent_id_never_changes_between_releases() -> None:
    """Changing how it is made would run every job again that is published once more after an upgrade."""
    assert keyed(("acme", "email.send", "order-42")) == "a8f79eb1-41cd-5fc1-9d79-58a8bc139f97"
    assert source_job_id(Source("jobs.default.normal", 3, 17)) == "a07d70d9-f83f-5ec2-b10b-5de0a27dc103"


def test_a_record_that_has_no_id_gets_the_same_one_at_every_redelivery() -> None:
    one, again = Source("jobs.default.normal", 3, 17), Source("jobs.default.normal", 3, 17)
    assert source_job_id(one) == source_job_id(again)
    others = [
        Source("jobs.default.normal", 31, 7),
        Source("jobs.default.normal", 3, 18),
        Source("jobs.gpu.normal", 3, 17),
    ]
    assert len({source_job_id(source) for source in (one, *others)}) == 4


def test_the_size_of_a_record_counts_what_it_holds() -> None:
    small = Record("t", 0, 0, None, None, [], 0.0)
    large = Record("t", 0, 0, b"k" * 10, b"v" * 1000, [("h", b"x")] * 3, 0.0)
    assert large.size - small.size >= 1010
    assert large.source == Source("t", 0, 0)
