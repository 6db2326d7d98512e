"""Records that cannot be read, or not yet, between others that everybody can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.core.job import Record, Source
from pipeline.core.ports import Outgoing
from pipeline.core.state import JobState
from pipeline.embedded.ports import remembered_ports
from tests.faults.case import Case, scenario
from tests.harness.checks import assert_clean_end, assert_runs
from tests.harness.jobs import Task
from tests.harness.newer import Versions
from tests.harness.raw import like, sound_record, write
from tests.harness.registry import registry_of
from tests.harness.versions import GREET

__all__: list[str] = []

NOISE = bytes(reversed(range(256)))  # a low first byte could announce the id of a schema
REGISTERED = 7
CHANGING = ("ce_id", "pipeline-attempt", "pipeline-hop", "pipeline-not-before")
Make = Callable[..., Outgoing]
Bad = dict[str, Outgoing]  # by the reason that the DLQ must give, and what is wrong


@scenario(29)
def schemas_are_unknown_or_old_or_new_or_the_registry_is_away(case: Case) -> None:
    """Unknown: looked up, retried, then dead with its bytes untouched. Registry away: the job waits. The rest is read."""
    world = case.world()
    port = remembered_ports(world.folder / "port.json", ["registry"])["registry"]
    versions = Versions(world)
    known = [job for version in (1, 2, 3) for job in versions.publish(version, {"name": f"v{version}"})]
    make = like(world.records(world.names.main("default"))[0])
    newest = versions.encode(3, {"name": "Ann", "tone": "warm"})
    unknown = make(newest[:2] + bytes(8) + newest[10:])
    waiting = make(b"\x00" + REGISTERED.to_bytes(4) + newest[10:])
    write(world, [unknown, waiting])
    worker = versions.start_worker(
        2, schema_registry__url=f"http://127.0.0.1:{port}", schema_registry__timeout=0.5
    )
    greeted = versions.wait_greeted(known)
    assert [entry["attempt"] for entry in greeted] == [1, 1, 1]
    world.wait("the unknown one is dead", lambda: world.states().get(_id(unknown)) is JobState.DEAD)
    world.wait("the other waits", lambda: world.states().get(_id(waiting)) is JobState.RETRYING)
    schema = Path(versions.schemas(3), GREET, "v3.avsc").read_text()
    with registry_of({REGISTERED: schema}, port=port):
        (found,) = versions.wait_greeted([_id(waiting)])
    assert (found["attempt"], found["payload"]) == (1, {"name": "Ann", "greeting": "hello"})
    (letter,) = world.letters()
    assert letter.value == unknown.value
    assert dict(letter.headers)["pipeline-reason"] == b"unknown_schema"
    assert worker.running
    world.wait_committed()
    assert_clean_end(world)
    case.figures.jobs += len(known) + 2


def _id(record: Outgoing) -> str:
    return (dict(record.headers)["ce_id"] or b"").decode()


@scenario(30)
def payloads_are_truncated_trailing_or_noise(case: Case) -> None:
    def made(make: Make, value: bytes) -> Bad:
        return {
            "undecodable: random bytes": make(NOISE),
            "undecodable: nothing": make(None),
            "undecodable: cut short": make(value[:-1]),
            "undecodable: one byte too many": make(value + b"\x00"),
        }

    _buried_among_good_ones(case, made)


@scenario(31)
def headers_are_corrupted(case: Case) -> None:
    def made(make: Make, value: bytes) -> Bad:
        without_tenant, twice, bare = make(), make(), make(NOISE)
        without_tenant.headers[:] = [each for each in without_tenant.headers if each[0] != "pipeline-tenant"]
        twice.headers.append(("pipeline-attempt", b"2"))
        bare.headers.clear()
        return {
            "malformed: no headers at all": bare,
            "malformed: attempt is no number": make(pipeline__attempt=b"many"),
            "malformed: attempt is negative": make(pipeline__attempt=b"-1"),
            "malformed: attempt is huge": make(pipeline__attempt=b"9" * 30),
            "malformed: attempt is given twice": twice,
            "malformed: no tenant": without_tenant,
            "malformed: id is none": make(ce_id=b"\xff\xfe"),
            "malformed: due after the end of time": make(pipeline__not__before=b"1e300"),
        }

    _buried_among_good_ones(case, made)


def _buried_among_good_ones(case: Case, made: Callable[[Make, bytes], Bad]) -> None:
    """Exactly the bad ones rest in the DLQ, their bytes untouched; their neighbours in the batch are done."""
    world = case.world()
    before = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(9)])
    sample = sound_record(world)
    bad = made(like(sample), sample.value or b"")
    places = write(world, list(bad.values()))
    after = world.publish(world.jobs.effect, [Task(name=f"after-{n}") for n in range(9)])
    world.start_worker()
    with world.sampler() as sampler:
        world.wait_ended()
        world.wait("every bad record is buried", lambda: len(world.letters()) >= len(bad))
        world.wait_committed()
    letters = {_origin(letter): letter for letter in world.letters()}
    assert letters.keys() == set(places)
    for place, (name, record) in zip(places, bad.items(), strict=True):
        _assert_buried(name, record, letters[place])
    assert_runs(world, before + after)
    case.judge_world(world, sampler)


def _origin(letter: Record) -> Source:
    """Where the record lay that the letter was at first."""
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    topic, partition, offset = (
        headers[f"pipeline-first-{part}"] for part in ("topic", "partition", "offset")
    )
    return Source(topic, int(partition), int(offset))


def _assert_buried(name: str, record: Outgoing, letter: Record) -> None:
    reason, _, _ = name.partition(":")
    headers = dict(letter.headers)
    assert headers["pipeline-reason"] == reason.encode(), f"{name}: {letter}"
    assert headers["pipeline-last-error-message"], name
    assert (letter.key, letter.value) == (record.key, record.value), name
    kept = {pair for pair in record.headers if pair[0] not in CHANGING}
    assert kept <= set(letter.headers), f"{name}: {letter}"
