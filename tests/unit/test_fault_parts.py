"""What the fault suite is made of: requests are found in streams of bytes, figures add up, the report tells all rows."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.figures import Figures, percentile
from tests.faults.matrix import MATRIX, MISSING
from tests.faults.report import Result, load_results, save_results, write_report
from tests.harness.requests import (
    OFFSET_COMMIT,
    PRODUCE,
    KafkaRequests,
    PostgresRequests,
    Splitter,
    kafka_request,
    statement,
)


def of_kafka(kind: int, body: bytes) -> bytes:
    return struct.pack(">ih", 2 + len(body), kind) + body


def of_postgres(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


ENCRYPTION_ASKED = struct.pack(">ii", 8, 80877103)
STARTUP = struct.pack(">ii", 13, 196608) + b"user\0"


def split(splitter: Splitter, data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    parts = [data[start:end] for start, end in pairwise(places)]
    return [request for part in parts for request in splitter.feed(part)]


CUTS = st.lists(st.integers(0, 10_000), max_size=8)
BODIES = st.lists(st.binary(max_size=40), max_size=6)


@given(BODIES, CUTS)
def test_requests_to_kafka_are_found_however_the_bytes_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    requests = [of_kafka(PRODUCE, body) for body in bodies]
    assert split(KafkaRequests(), b"".join(requests), cuts) == requests


@given(BODIES, CUTS)
def test_messages_to_postgres_are_found_however_the_bytes_arrive(
    bodies: list[bytes], cuts: list[int]
) -> None:
    messages = [
        ENCRYPTION_ASKED,
        STARTUP,
        *(of_postgres(b"Q", body) for body in bodies),
        of_postgres(b"X", b""),
    ]
    assert split(PostgresRequests(), b"".join(messages), cuts) == messages


def test_requests_are_told_apart_by_kind_and_content() -> None:
    request = of_kafka(PRODUCE, b"..jobs.default.retry.1s..")
    assert kafka_request(PRODUCE)(request)
    assert kafka_request(PRODUCE, containing=b".retry.")(request)
    assert not kafka_request(PRODUCE, containing=b".dlq")(request)
    assert not kafka_request(OFFSET_COMMIT)(request)
    assert statement(b"COMMIT")(of_postgres(b"Q", b"COMMIT\0"))
    assert statement(b"COMMIT")(of_postgres(b"P", b"\0COMMIT\0\0\0"))
    assert not statement(b"COMMIT")(of_postgres(b"B", b"COMMIT"))


def test_figures_of_several_runs_add_up() -> None:
    figures = Figures(jobs=1000, redelivered=3, recoveries=[2.0], memory_mb=80, notes={"probes": 2})
    figures.merge(
        Figures(jobs=1000, lost=1, redelivered=1, recoveries=[4.0], memory_mb=70, notes={"probes": 5})
    )
    assert figures.text() == (
        "lost 1, doubled 0, fallen 0, 2.0 redeliveries per 1,000, recovery p50 4.0 s, p95 4.0 s, "
        "memory 80 MB, probes 5, 2,000 jobs"
    )


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 95) == 3.0


def test_the_report_has_a_line_for_every_row_of_the_matrix_and_hides_nothing(tmp_path: Path) -> None:
    about = {"commit": "abc", "date": "2026-01-02", "scale": "10 jobs", "runs": 1}
    failure = "2-some, seed 7: AssertionError: 1 lost"
    results = {
        "1": [Result(figures=Figures(jobs=10), seeds=[seed], **about) for seed in (7, 8)],  # type: ignore[arg-type]
        "2": [Result(seeds=[7], failures=[failure], **about), Result(seeds=[8], **about)],  # type: ignore[arg-type]
    }
    save_results(tmp_path / "results.json", results)
    write_report(tmp_path / "report.md", load_results(tmp_path / "results.json"), window=10)
    lines = (tmp_path / "report.md").read_text().splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("|")}
    assert {str(number) for number in MATRIX} <= rows.keys()
    assert "| pass | lost 0," in rows["1"]
    assert rows["1"].endswith("20 jobs; 2 runs |")
    assert f"| fail | {failure}" in rows["2"]
    assert rows["3"].endswith("| not here | not run yet |")
    assert all(f"| not here | {reason} |" in rows[str(number)] for number, reason in MISSING.items())
    assert all(f"- commit abc, 2026-01-02, 10 jobs, seeds {seed}: 1, 2" in lines for seed in (7, 8))
