"""Transactions in turns: their first parts run ahead, their second parts come in order, and none is kept without its forerunner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from pipeline.adapters.postgres.turns import Turns
from pipeline.errors import StoreUnavailable
from tests.harness.waiting import wait_until


class Connection:
    """Notes which transactions were committed."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.ended.append("rolled back")
            raise
        self.ended.append("committed")


class Session:
    """Runs work as often as it is told to: as one does whose server undid it."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.times = 1

    def run(self, work: Callable[[Any], None]) -> None:
        for _ in range(self.times):
            work(self.connection)

    def close(self) -> None: ...


@pytest.fixture
def sessions() -> list[Session]:
    return []


@pytest.fixture
def turns(sessions: list[Session]) -> Iterator[Turns]:
    def make() -> Any:
        sessions.append(Session())
        return sessions[-1]

    with closing(Turns(make)) as made:
        yield made


def nothing(_connection: object, _given: object) -> None: ...


def test_the_next_one_begins_while_the_one_before_is_not_over_and_ends_after_it(turns: Turns) -> None:
    gate = threading.Event()
    said: list[str] = []

    def slow(_connection: object, given: str) -> None:
        assert gate.wait(10)
        said.append(f"second of {given}")

    def first(_connection: object) -> str:
        said.append("first of two")
        return "two"

    turns.take(lambda _: "one", slow)
    turns.take(first, lambda _, given: said.append(f"second of {given}"))
    assert said == ["first of two"]
    gate.set()
    turns.finish()
    assert said == ["first of two", "second of one", "second of two"]


def test_what_the_first_part_raises_is_raised_at_once_and_nothing_is_under_way_then(
    turns: Turns, sessions: list[Session]
) -> None:
    began, gate = threading.Event(), threading.Event()

    def slow(_connection: object, _given: object) -> None:
        began.set()
        assert gate.wait(10)

    def fail(_connection: object) -> None:
        assert began.wait(10)
        gate.set()
        raise LookupError("first")

    turns.take(lambda _: None, slow)
    with pytest.raises(LookupError, match="first"):
        turns.take(fail, nothing)
    assert [each for session in sessions for each in session.connection.ended] == ["committed", "rolled back"]
    turns.finish()


def test_what_the_second_part_raises_comes_out_once_and_takes_the_next_one_along(
    turns: Turns, sessions: list[Session]
) -> None:
    gate = threading.Event()

    def fail(_connection: object, _given: object) -> None:
        assert gate.wait(10)
        raise StoreUnavailable("away")

    kept: list[str] = []
    turns.take(lambda _: None, fail)
    turns.take(lambda _: None, lambda _connection, _given: kept.append("second"))
    gate.set()
    with pytest.raises(StoreUnavailable, match="away"):
        turns.finish()
    assert kept == []
    assert [each for session in sessions for each in session.connection.ended] == ["rolled back"] * 2
    turns.finish()
    turns.take(lambda _: None, lambda _connection, _given: kept.append("third"))
    turns.finish()
    assert kept == ["third"]


def test_a_failure_is_noticed_before_another_one_begins(turns: Turns) -> None:
    gate, begun = threading.Event(), list[str]()

    def fail(_connection: object, _given: object) -> None:
        assert gate.wait(10)
        raise StoreUnavailable("away")

    turns.take(lambda _: None, fail)
    gate.set()
    wait_until(lambda: turns.ended, "it failed")
    with pytest.raises(StoreUnavailable, match="away"):
        turns.take(lambda _: begun.append("next"), nothing)
    assert begun == []


def test_a_first_part_is_not_done_again_once_its_caller_went_on(
    turns: Turns, sessions: list[Session]
) -> None:
    for session in sessions:
        session.times = 2
    gate, calls = threading.Event(), list[str]()

    def slow(_connection: object, _given: object) -> None:
        assert gate.wait(10)

    turns.take(lambda _: calls.append("first"), slow)
    gate.set()
    with pytest.raises(StoreUnavailable, match="begin again"):
        turns.finish()
    assert calls == ["first"]
