"""Floors under the codec's speed, in CPU time: far below what an idle machine does, far above what a mistake would cost."""

from __future__ import annotations

import pytest

from bench.codec import run


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return run(operations=2000)


@pytest.mark.parametrize(
    ("figure", "floor"),
    [
        ("codec.encode_per_s", 30_000),
        ("codec.decode_per_s", 15_000),
        ("codec.decode_older_per_s", 12_000),
        ("codec.encode_ratio", 0.5),
        ("codec.decode_ratio", 0.4),
    ],
)
def test_the_codec_is_fast_enough_alone_and_beside_bare_fastavro(
    figures: dict[str, float], figure: str, floor: float
) -> None:
    assert figures[figure] >= floor
