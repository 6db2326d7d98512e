"""Commits that were sent and not answered yet."""

from __future__ import annotations

from pipeline.adapters.kafka.commits import ANSWER_SECONDS, CommitsUnderWay
from pipeline.core.offsets import Partition

ONE, TWO = Partition("jobs", 1), Partition("jobs", 2)


def test_a_partition_waits_for_the_answer_to_its_last_commit() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5}, now=100.0)
    assert commits.busy([ONE, TWO], now=101.0) == [ONE]
    commits.answered([ONE])
    assert commits.busy([ONE, TWO], now=101.0) == []


def test_an_answer_that_never_comes_is_not_waited_for_for_ever() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5}, now=100.0)
    assert commits.busy([ONE], now=100.0 + ANSWER_SECONDS) == []


def test_a_last_commit_takes_along_what_is_under_way_and_never_falls_behind_it() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5, TWO: 9}, now=100.0)
    assert commits.with_last({ONE: 7}) == {ONE: 7, TWO: 9}
    assert commits.with_last({TWO: 3}) == {ONE: 5, TWO: 9}
    commits.answered([ONE, TWO])
    assert commits.with_last({ONE: 7}) == {ONE: 7}
