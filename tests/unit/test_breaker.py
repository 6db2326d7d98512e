"""The breaker as a function from one shared state to the next: what opens it, who may probe, what closes it."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.core.breaker import (
    CLOSED_CIRCUIT,
    RAMP_SECONDS,
    Breaker,
    BreakerKey,
    BreakerState,
    Circuit,
    OpenReason,
    ProbeEnd,
    Sign,
    Tally,
    closed_by_hand,
    counted,
    key_of,
    may_probe,
    opened_by_hand,
    probe_end,
    probe_ended,
    probe_renewed,
    probe_taken,
    released,
    sign_of,
)
from pipeline.core.job import Job
from pipeline.core.outcome import (
    Cancelled,
    Crashed,
    Failed,
    Failure,
    Lost,
    Outcome,
    Rejected,
    Snoozed,
    Succeeded,
)
from pipeline.errors import ConfigError

NOW = 1_800_000_000.0
LEASE = 15.0
FAILURE = Failure("ConnectionError", "no route")
JOB = Job("0198c3a2-0000-7000-8000-000000000001", "email.send", "acme", "default")


def tally(*signs: Sign, dead: int = 0, ended: int = 0) -> Tally:
    made = Tally()
    for sign in signs:
        made.add(sign, ended=False, dead=False)
    made.dead += dead
    made.ended += ended
    return made


def count(circuit: Circuit, breaker: Breaker, *tallies: Tally, now: float = NOW) -> Circuit:
    for each in tallies:
        circuit = counted(circuit, breaker, each, by="a", now=now)
    return circuit


def bad(number: int) -> Tally:
    return tally(*[Sign.BAD] * number)


def good(number: int = 1) -> Tally:
    return tally(*[Sign.GOOD] * number)


OPEN = count(CLOSED_CIRCUIT, Breaker(), bad(10))


# --- opening


def test_so_many_failures_in_a_row_open_it_whoever_saw_them() -> None:
    nine = count(CLOSED_CIRCUIT, Breaker(), bad(4), bad(5))
    assert nine.state is BreakerState.CLOSED
    opened = counted(nine, Breaker(), bad(1), by="b", now=NOW)
    assert (opened.state, opened.reason, opened.by, opened.opened) == (
        BreakerState.OPEN,
        OpenReason.FAILURES,
        "b",
        1,
    )
    assert opened.retry_at == NOW + 60


def test_a_success_begins_the_row_anew() -> None:
    circuit = count(CLOSED_CIRCUIT, Breaker(), bad(9), tally(Sign.GOOD, Sign.BAD), bad(8))
    assert (circuit.state, circuit.streak) == (BreakerState.CLOSED, 9)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 12), st.integers(1, 7))
def test_however_it_is_told_it_opens_at_the_first_row_that_is_long_enough(
    runs: list[bool], failures: int, batch: int
) -> None:
    """Told in batches it opens with the batch in which the row was complete at its end, or grew to it one by one."""
    breaker = Breaker(failures=failures, flood=None)
    one_by_one = CLOSED_CIRCUIT
    for ok in runs:
        one_by_one = count(one_by_one, breaker, good() if ok else bad(1))
    longest = max((len(row) for row in "".join("." if ok else "x" for ok in runs).split(".")), default=0)
    assert (one_by_one.state is BreakerState.OPEN) == (longest >= failures)
    batches = [runs[at : at + batch] for at in range(0, len(runs), batch)]
    told = CLOSED_CIRCUIT
    for part in batches:
        told = count(told, breaker, tally(*(Sign.GOOD if ok else Sign.BAD for ok in part)))
    if told.state is BreakerState.OPEN:
        assert one_by_one.state is BreakerState.OPEN


def test_a_ratio_needs_a_number_of_failures_within_the_window() -> None:
    breaker = Breaker(failures=10, ratio=0.5, window=60)
    assert count(CLOSED_CIRCUIT, breaker, bad(9)).state is BreakerState.CLOSED
    assert count(CLOSED_CIRCUIT, breaker, good(11), bad(10)).state is BreakerState.CLOSED
    mixed = count(CLOSED_CIRCUIT, breaker, good(10), bad(10))
    assert (mixed.state, mixed.reason) == (BreakerState.OPEN, OpenReason.RATIO)


def test_what_is_older_than_the_window_does_not_count() -> None:
    breaker = Breaker(failures=10, ratio=0.5, window=60)
    circuit = count(CLOSED_CIRCUIT, breaker, bad(9))
    circuit = count(circuit, breaker, bad(9), now=NOW + 61)
    assert (circuit.state, circuit.failed) == (BreakerState.CLOSED, 9)


def test_a_flood_of_dead_letters_opens_it_although_nothing_failed_in_a_row() -> None:
    circuit = count(CLOSED_CIRCUIT, Breaker(), tally(ended=150, dead=99))
    assert circuit.state is BreakerState.CLOSED
    circuit = count(circuit, Breaker(), tally(Sign.GOOD, ended=2, dead=1))
    assert (circuit.state, circuit.reason) == (BreakerState.OPEN, OpenReason.DLQ_FLOOD)


def test_many_dead_letters_among_far_more_jobs_are_no_flood() -> None:
    assert count(CLOSED_CIRCUIT, Breaker(), tally(ended=100_000, dead=40_000)).state is BreakerState.CLOSED
    assert (
        count(CLOSED_CIRCUIT, Breaker(flood=None), tally(ended=9000, dead=9000)).state is BreakerState.CLOSED
    )


def test_what_ends_after_it_opened_changes_nothing() -> None:
    assert count(OPEN, Breaker(), good(100), bad(100)) == OPEN


# --- signs


@pytest.mark.parametrize(
    ("outcome", "sign"),
    [
        (Succeeded(), Sign.GOOD),
        (Failed(FAILURE), Sign.BAD),
        (Failed(FAILURE, retry_after=5.0), Sign.BAD),
        (Failed(FAILURE, permanent=True), Sign.ANSWERED),
        (Failed(FAILURE, counts=False), Sign.ANSWERED),
        (Failed(FAILURE, reason="unknown_job_type"), Sign.SILENT),
        (Rejected(FAILURE), Sign.ANSWERED),
        (Rejected(FAILURE, "undecodable"), Sign.SILENT),
        (Cancelled(""), Sign.ANSWERED),
        (Crashed(FAILURE, 1), Sign.CRASHED),
        (Snoozed(5.0, None), Sign.SILENT),
        (Lost(), Sign.SILENT),
    ],
)
def test_what_the_end_of_a_run_says_of_the_dependency(outcome: Outcome, sign: Sign) -> None:
    assert sign_of(outcome) is sign


def test_only_good_and_bad_runs_are_counted() -> None:
    assert tally(Sign.ANSWERED, Sign.SILENT, Sign.CRASHED) == Tally()


def test_the_errors_that_count_can_be_named() -> None:
    breaker = Breaker(errors=(ConnectionError, TimeoutError))
    assert breaker.counts(ConnectionResetError())
    assert not breaker.counts(ValueError())
    assert Breaker().counts(ValueError())


def test_a_tenant_has_a_circuit_of_its_own_only_where_that_is_wanted() -> None:
    assert key_of(Breaker(), JOB) == key_of(None, JOB) == BreakerKey("email.send")
    assert key_of(Breaker(per_tenant=True), JOB) == BreakerKey("email.send", "acme")


# --- probing


def taken(circuit: Circuit, *, by: str = "a", now: float) -> Circuit:
    return probe_taken(circuit, by=by, now=now, lease=LEASE)


def test_nobody_probes_before_its_time_and_one_does_after() -> None:
    assert taken(OPEN, now=NOW + 59.9) is OPEN
    probing = taken(OPEN, now=NOW + 60)
    assert (probing.state, probing.prober) == (BreakerState.HALF_OPEN, "a")
    assert taken(probing, by="b", now=NOW + 61) is probing


def test_a_probe_that_is_not_renewed_is_another_workers() -> None:
    probing = taken(OPEN, now=NOW + 60)
    renewed = probe_renewed(probing, by="a", now=NOW + 70, lease=LEASE)
    assert not may_probe(renewed, NOW + 84)
    other = taken(renewed, by="b", now=NOW + 85)
    assert other.prober == "b"
    assert probe_renewed(other, by="a", now=NOW + 86, lease=LEASE) is other
    assert probe_ended(other, Breaker(), ProbeEnd.PASSED, by="a", now=NOW + 86) is other


def test_a_probe_that_passes_closes_it_and_the_counts_begin_anew() -> None:
    closed = probe_ended(taken(OPEN, now=NOW + 60), Breaker(), ProbeEnd.PASSED, by="a", now=NOW + 61)
    assert closed == Circuit(by="a", changed_at=NOW + 61, opened=1, counted_from=NOW + 61)


def test_a_probe_that_fails_keeps_it_open_as_long_again() -> None:
    breaker = Breaker(reset_after=30)
    again = probe_ended(taken(OPEN, now=NOW + 60), breaker, ProbeEnd.FAILED, by="a", now=NOW + 61)
    assert (again.state, again.reason, again.retry_at, again.opened) == (
        BreakerState.OPEN,
        OpenReason.FAILURES,
        NOW + 91,
        1,
    )


def test_a_probe_that_tells_nothing_makes_room_for_the_next_at_once() -> None:
    again = probe_ended(taken(OPEN, now=NOW + 60), Breaker(), ProbeEnd.UNKNOWN, by="a", now=NOW + 61)
    assert taken(again, by="b", now=NOW + 61).prober == "b"


@pytest.mark.parametrize(
    ("sign", "dead", "after_failures", "after_flood"),
    [
        (Sign.GOOD, False, ProbeEnd.PASSED, ProbeEnd.PASSED),
        (Sign.BAD, False, ProbeEnd.FAILED, ProbeEnd.FAILED),
        (Sign.BAD, True, ProbeEnd.FAILED, ProbeEnd.FAILED),
        (Sign.ANSWERED, True, ProbeEnd.PASSED, ProbeEnd.FAILED),
        (Sign.ANSWERED, False, ProbeEnd.PASSED, ProbeEnd.PASSED),
        (Sign.CRASHED, False, ProbeEnd.FAILED, ProbeEnd.FAILED),
        (Sign.SILENT, False, ProbeEnd.UNKNOWN, ProbeEnd.UNKNOWN),
        (Sign.SILENT, True, ProbeEnd.UNKNOWN, ProbeEnd.FAILED),
    ],
)
def test_every_end_of_a_probe_leads_on(
    sign: Sign, *, dead: bool, after_failures: ProbeEnd, after_flood: ProbeEnd
) -> None:
    flooded = OPEN._replace(reason=OpenReason.DLQ_FLOOD)
    assert probe_end(OPEN, sign, dead=dead) is after_failures
    assert probe_end(flooded, sign, dead=dead) is after_flood


# --- by hand


def test_an_operator_holds_a_type_until_it_is_closed_or_for_a_time() -> None:
    held = opened_by_hand(CLOSED_CIRCUIT, by="ann", now=NOW)
    assert (held.state, held.reason, held.retry_at) == (BreakerState.OPEN, OpenReason.OPERATOR, inf)
    assert not may_probe(held, NOW + 1e9)
    assert may_probe(opened_by_hand(CLOSED_CIRCUIT, by="ann", now=NOW, seconds=30), NOW + 30)
    closed = closed_by_hand(held, by="bob", now=NOW + 5)
    assert (closed.state, closed.by, closed.opened) == (BreakerState.CLOSED, "bob", 1)
    assert closed_by_hand(closed, by="eve", now=NOW + 6) is closed


def test_an_operator_overrides_a_probe_under_way() -> None:
    held = opened_by_hand(taken(OPEN, now=NOW + 60), by="ann", now=NOW + 61)
    assert held.opened == 1  # it was open all the time
    assert probe_ended(held, Breaker(), ProbeEnd.PASSED, by="a", now=NOW + 62) is held


# --- letting go


@given(st.floats(0, RAMP_SECONDS - 1))
def test_after_closing_twice_as_many_are_let_go_each_second(seconds: float) -> None:
    assert released(0) == 2
    if seconds + 1 < RAMP_SECONDS:
        assert released(seconds + 1) == pytest.approx(2 * released(seconds))
    assert released(RAMP_SECONDS) == inf


# --- the declaration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("failures", 0),
        ("ratio", 1.1),
        ("ratio", nan),
        ("window", 0.5),
        ("reset_after", 0),
        ("reset_after", inf),
        ("flood", -0.1),
        ("flood_least", 0),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"breaker: {key} is {value}; allowed: \S+ to \S+"):
        Breaker(**{key: value})


def test_errors_that_are_no_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="breaker: errors is"):
        Breaker(errors=("ConnectionError",))  # type: ignore[arg-type]


# --- a fleet


class Fleet(RuleBasedStateMachine):
    """Workers that see runs end, probe, die and come back, operators between them: over one shared circuit."""

    WORKERS = ("a", "b", "c")
    BREAKER = Breaker(failures=3, reset_after=20, flood_least=5)

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.circuit = CLOSED_CIRCUIT
        self.leases: dict[str, float] = {}  # what each worker believes: until when the probe is its own

    def change(self, circuit: Circuit) -> None:
        before, self.circuit = self.circuit, circuit
        if (before.state, circuit.state) == (BreakerState.CLOSED, BreakerState.HALF_OPEN):
            raise AssertionError("a closed breaker was probed")

    @rule(seconds=st.floats(0.1, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.leases = {worker: until for worker, until in self.leases.items() if until > self.now}

    @rule(
        worker=st.sampled_from(WORKERS),
        signs=st.lists(st.sampled_from(Sign), max_size=5),
        dead=st.integers(0, 3),
    )
    def runs_end(self, worker: str, signs: list[Sign], dead: int) -> None:
        seen = tally(*signs, dead=dead, ended=dead)
        self.change(counted(self.circuit, self.BREAKER, seen, by=worker, now=self.now))

    @rule(worker=st.sampled_from(WORKERS))
    def probe(self, worker: str) -> None:
        after = probe_taken(self.circuit, by=worker, now=self.now, lease=LEASE)
        if after is not self.circuit:
            self.leases[worker] = self.now + LEASE
        self.change(after)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.leases)))
        self.change(probe_renewed(self.circuit, by=worker, now=self.now, lease=LEASE))
        if self.circuit.prober == worker:
            self.leases[worker] = self.now + LEASE
        else:
            del self.leases[worker]

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), end=st.sampled_from(ProbeEnd))
    def probe_ends(self, data: st.DataObject, end: ProbeEnd) -> None:
        worker = data.draw(st.sampled_from(sorted(self.leases)))
        del self.leases[worker]
        self.change(probe_ended(self.circuit, self.BREAKER, end, by=worker, now=self.now))

    @rule()
    def every_worker_dies(self) -> None:
        self.leases.clear()

    @rule(seconds=st.just(inf) | st.floats(0, 50))
    def operator_opens(self, seconds: float) -> None:
        self.change(opened_by_hand(self.circuit, by="ann", now=self.now, seconds=seconds))
        self.leases.clear()  # what they believe counts for nothing now

    @rule()
    def operator_closes(self) -> None:
        self.change(closed_by_hand(self.circuit, by="ann", now=self.now))
        self.leases.clear()

    @invariant()
    def at_most_one_probes(self) -> None:
        assert len(self.leases) <= 1, self.leases

    @invariant()
    def a_prober_is_named_only_half_open(self) -> None:
        assert bool(self.circuit.prober) == (self.circuit.state is BreakerState.HALF_OPEN)

    @invariant()
    def it_closes_soon_once_probes_pass(self) -> None:
        """From wherever it is: unless a person holds it, one passing probe after the next time to try closes it."""
        circuit = self.circuit
        if circuit.state is BreakerState.CLOSED or (
            circuit.retry_at == inf and circuit.state is BreakerState.OPEN
        ):
            return
        later = max(self.now, circuit.retry_at, circuit.probe_until)
        assert later - self.now <= max(self.BREAKER.reset_after, LEASE, 50)
        probing = probe_taken(circuit, by="z", now=later, lease=LEASE)
        assert probing.prober == "z"
        closed = probe_ended(probing, self.BREAKER, ProbeEnd.PASSED, by="z", now=later + 1)
        assert closed.state is BreakerState.CLOSED


TestFleet = Fleet.TestCase
