"""What every breaker store and every parking promises: tested on Postgres and on the twins in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf

import psycopg
import pytest

from pipeline.adapters.memory_breakers import MemoryBreakers, MemoryParking
from pipeline.adapters.postgres import migrate
from pipeline.adapters.postgres.breakers import PostgresBreakers
from pipeline.adapters.postgres.parked import PostgresParking
from pipeline.core.breaker import (
    Breaker,
    BreakerKey,
    BreakerState,
    Circuit,
    ProbeEnd,
    Sign,
    Step,
    Tally,
    closed_by_hand,
    counted,
    opened_by_hand,
    probe_ended,
    probe_renewed,
    probe_taken,
)
from pipeline.core.clock import ManualClock, SystemClock
from pipeline.core.headers import job_headers
from pipeline.core.job import Job, Record
from pipeline.core.parked import ParkedRecord
from pipeline.core.ports import BreakerStore, Parking
from pipeline.errors import StoreUnavailable

KEY = BreakerKey("email.send")
TENANT = BreakerKey("email.send", "acme")
BREAKER = Breaker(failures=3, reset_after=30)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.servers)])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def schema(kind: str, request: pytest.FixtureRequest, unique: str) -> Iterator[str]:
    """Where the tables are; empty for the twins."""
    if kind == "memory":
        yield ""
        return
    dsn = request.getfixturevalue("servers").postgres_dsn
    migrate(dsn, schema=unique)
    yield dsn
    with psycopg.connect(dsn) as connection:
        connection.execute(f"drop schema {unique} cascade".encode())


@pytest.fixture
def breakers(schema: str, unique: str) -> Iterator[BreakerStore]:
    found: BreakerStore = PostgresBreakers(schema, schema=unique) if schema else MemoryBreakers(SystemClock())
    yield found
    found.close()


@pytest.fixture
def parking(schema: str, unique: str) -> Iterator[Parking]:
    found: Parking = PostgresParking(schema, schema=unique) if schema else MemoryParking()
    yield found
    found.close()


def saw(failures: int, by: str = "a") -> Step:
    tally = Tally()
    for _ in range(failures):
        tally.add(Sign.BAD, ended=False, dead=False)
    return lambda circuit, now: counted(circuit, BREAKER, tally, by=by, now=now)


def take(by: str) -> Step:
    return lambda circuit, now: probe_taken(circuit, by=by, now=now, lease=15)


def changed(breakers: BreakerStore, step: Step, key: BreakerKey = KEY) -> Circuit:
    return breakers.change({key: step}).circuits[key]


def test_at_first_there_is_none(breakers: BreakerStore) -> None:
    look = breakers.look()
    assert look.circuits == {}
    assert look.now == pytest.approx(SystemClock().time(), abs=60)


def test_what_several_workers_saw_is_counted_together_and_seen_by_all(breakers: BreakerStore) -> None:
    assert changed(breakers, saw(2)).state is BreakerState.CLOSED
    assert breakers.look().circuits[KEY].streak == 2
    opened = changed(breakers, saw(1, by="b"))
    assert (opened.state, opened.reason, opened.by, opened.opened) == (BreakerState.OPEN, "failures", "b", 1)
    assert opened.retry_at == pytest.approx(opened.changed_at + 30, abs=0.001)
    assert breakers.look().circuits == {KEY: opened}


def test_a_tenant_and_its_job_type_are_apart(breakers: BreakerStore) -> None:
    found = breakers.change({KEY: saw(1), TENANT: saw(3), BreakerKey("other"): saw(0)}).circuits
    assert [found[key].state for key in (KEY, TENANT)] == [BreakerState.CLOSED, BreakerState.OPEN]
    assert breakers.look().circuits == found


def test_a_whole_life_is_kept_as_the_rules_have_it(breakers: BreakerStore) -> None:
    held = changed(breakers, lambda circuit, now: opened_by_hand(circuit, by="ann", now=now))
    assert (held.retry_at, held.reason) == (inf, "operator")
    assert breakers.look().circuits[KEY] == held
    assert changed(breakers, take("a")) == held
    changed(breakers, lambda circuit, now: opened_by_hand(circuit, by="ann", now=now, seconds=0))
    probing = changed(breakers, take("a"))
    assert (probing.state, probing.prober) == (BreakerState.HALF_OPEN, "a")
    assert probing.probe_until == pytest.approx(probing.changed_at + 15, abs=0.001)
    assert changed(breakers, take("b")) == probing
    renewed = changed(breakers, lambda circuit, now: probe_renewed(circuit, by="a", now=now, lease=60))
    assert renewed.probe_until > probing.probe_until
    closed = changed(
        breakers, lambda circuit, now: probe_ended(circuit, BREAKER, ProbeEnd.PASSED, by="a", now=now)
    )
    assert (closed.state, closed.streak, closed.opened) == (BreakerState.CLOSED, 0, 1)
    assert breakers.look().circuits[KEY] == closed  # for a minute, so that all can let go gradually


def test_of_many_that_ask_at_once_one_gets_the_probe(
    breakers: BreakerStore, schema: str, unique: str
) -> None:
    changed(breakers, lambda circuit, now: opened_by_hand(circuit, by="ann", now=now, seconds=0))
    names = [f"worker-{number}" for number in range(6)]
    stores = {name: PostgresBreakers(schema, schema=unique) if schema else breakers for name in names}
    start = threading.Barrier(len(names))
    probers: list[str] = []

    def ask(name: str) -> None:
        start.wait()
        probers.append(changed(stores[name], take(name)).prober)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(probers) == len(names)
    assert len(set(probers)) == 1
    for store in stores.values():
        if store is not breakers:
            store.close()


def test_no_failure_is_lost_between_workers_that_write_at_once(
    breakers: BreakerStore, schema: str, unique: str
) -> None:
    patient = Breaker(failures=1000)
    stores = [PostgresBreakers(schema, schema=unique) if schema else breakers for _ in range(4)]

    def count(circuit: Circuit, now: float) -> Circuit:
        tally = Tally()
        tally.add(Sign.BAD, ended=True, dead=True)
        return counted(circuit, patient, tally, by="a", now=now)

    def write(store: BreakerStore) -> None:
        for _ in range(25):
            store.change({KEY: count, TENANT: count})

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = breakers.look().circuits
    assert [(found[key].streak, found[key].dead) for key in (KEY, TENANT)] == [(100, 100)] * 2
    for store in stores:
        if store is not breakers:
            store.close()


def test_only_closed_ones_that_nobody_touches_are_forgotten(breakers: BreakerStore) -> None:
    breakers.change({KEY: saw(1), TENANT: saw(3)})
    assert breakers.forget(3600) == 0
    assert breakers.forget(-1) == 1
    assert set(breakers.look().circuits) == {TENANT}


def test_a_closed_store_is_unavailable(breakers: BreakerStore) -> None:
    breakers.close()
    with pytest.raises(StoreUnavailable):
        breakers.look()


def test_in_memory_one_that_has_rested_for_a_minute_is_not_told() -> None:
    clock = ManualClock()
    breakers = MemoryBreakers(clock)
    changed(breakers, lambda circuit, now: opened_by_hand(circuit, by="ann", now=now))
    changed(breakers, lambda circuit, now: closed_by_hand(circuit, by="ann", now=now))
    assert set(breakers.look().circuits) == {KEY}
    clock.advance(61)
    assert breakers.look().circuits == {}


# --- parking

JOB = Job("0198c3a2-0000-7000-8000-000000000001", "email.send", "acme", "default", hop=3, enqueued_at=1.8e9)


def record(*extra: tuple[str, bytes | None], value: bytes | None = b"\x00\xff" * 100_000) -> Record:
    headers = [*job_headers(JOB, ce_time="2027-01-15T08:00:00Z"), *extra]
    return Record("jobs.default.normal", 3, 17, b"\x00key", value, headers, 1_800_000_000.125)


@pytest.mark.parametrize("value", [b"\x00\xff" * 100_000, b"", None])
def test_a_record_is_kept_byte_for_byte(parking: Parking, value: bytes | None) -> None:
    odd = record(
        ("nul\x00 'quoted\" \\", b"\x00\xff"), ("empty", b""), ("none", None), ("none", None), value=value
    )
    parked = ParkedRecord(JOB, odd, "too_large")
    parking.park(parked)
    parking.park(parked)
    found = parking.load(JOB.job_id, JOB.hop)
    assert found is not None
    assert found.record == odd
    assert found.job.job_id == JOB.job_id
    assert found.reason == "too_large"


def test_a_job_may_be_parked_again_at_a_later_hop(parking: Parking) -> None:
    first = ParkedRecord(JOB, record(), "too_large")
    second = ParkedRecord(JOB._replace(hop=9), record(value=b"second"), "max_attempts")
    for parked in (first, second):
        parking.park(parked)
    found = [parking.load(JOB.job_id, hop) for hop in (3, 9)]
    assert [each and each.record.value for each in found] == [first.record.value, b"second"]


def test_what_was_never_parked_is_not_there(parking: Parking) -> None:
    assert parking.load(JOB.job_id, 0) is None
    parking.close()
    with pytest.raises(StoreUnavailable):
        parking.load(JOB.job_id, 0)
