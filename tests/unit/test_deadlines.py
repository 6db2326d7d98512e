"""Time limits on a loop: each run that stays too long is told, once and in time, and no other."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.executors.deadlines import Deadlines


class Alarm:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self._when = when
        self.ring = callback
        self.cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose time is moved by hand; it remembers how many timers were ever set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.alarms: list[Alarm] = []
        self.set = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> Alarm:
        alarm = Alarm(when, callback)
        self.alarms.append(alarm)
        self.set += 1
        return alarm

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [alarm for alarm in self.alarms if not alarm.cancelled and alarm.when() <= until]:
            first = min(due, key=Alarm.when)
            self.alarms.remove(first)
            self.now = max(self.now, first.when())
            first.ring()
        self.now = until


class TestDeadlines:
    def test_a_run_that_stays_beyond_its_limit_is_told_once(self) -> None:
        loop, late = Loop(), list[str]()
        deadlines = Deadlines(loop, late.append)
        deadlines.add("a", 5.0)
        loop.advance(4.9)
        assert late == []
        loop.advance(0.2)
        assert late == ["a"]
        loop.advance(100.0)
        assert late == ["a"]
        deadlines.remove("a", 5.0)

    def test_a_shorter_limit_is_kept_behind_a_longer_one(self) -> None:
        loop, late = Loop(), list[str]()
        deadlines = Deadlines(loop, late.append)
        deadlines.add("long", 60.0)
        deadlines.add("short", 1.0)
        loop.advance(1.0)
        assert late == ["short"]
        loop.advance(59.0)
        assert late == ["short", "long"]

    def test_many_short_runs_set_few_timers(self) -> None:
        loop, late = Loop(), list[str]()
        deadlines = Deadlines(loop, late.append)
        for number in range(10_000):
            deadlines.add(str(number), 30.0)
            loop.advance(0.01)
            deadlines.remove(str(number), 30.0)
        assert late == []
        assert loop.set <= 5  # in 100 seconds with a limit of 30

    @given(
        st.lists(
            st.tuples(st.sampled_from([1.0, 2.0, 7.0]), st.floats(0.0, 10.0), st.floats(0.0, 3.0)),
            max_size=30,
        )
    )
    def test_exactly_those_are_told_that_stay_beyond_their_limit(
        self, runs: list[tuple[float, float, float]]
    ) -> None:
        """Each run begins a while after the one before it, and stays for so long."""
        loop, told = Loop(), dict[int, float]()
        deadlines: Deadlines[int] = Deadlines(loop, lambda run: told.update({run: loop.now}))
        moments: list[tuple[float, int, Callable[[], None]]] = []
        begin, due = 0.0, dict[int, float]()
        for number, (limit, stay, pause) in enumerate(runs):
            begin += pause
            moments.append((begin, number, lambda n=number, x=limit: deadlines.add(n, x)))  # type: ignore[misc]
            moments.append((begin + stay, number, lambda n=number, x=limit: deadlines.remove(n, x)))  # type: ignore[misc]
            if stay > limit + 1e-6:
                due[number] = 100.0 + begin + limit
            elif stay >= limit - 1e-6:
                due[number] = -1.0  # either way is right
        for at, _, act in sorted(moments, key=lambda moment: moment[0]):
            loop.advance(max(0.0, 100.0 + at - loop.now))
            act()
        loop.advance(100.0)
        certain = {number for number, at in due.items() if at > 0}
        assert certain <= told.keys() <= due.keys()
        assert all(abs(told[number] - due[number]) < 1e-6 for number in certain)
