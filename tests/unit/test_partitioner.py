"""Kafka's murmur2: known values, and its range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # Published in the tests of Kafka's clients.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_the_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_every_key_has_a_partition_and_always_the_same(key: bytes, partitions: int) -> None:
    chosen = partition_of(key, partitions)
    assert 0 <= chosen < partitions
    assert chosen == partition_of(bytes(bytearray(key)), partitions)
