"""Pauses of a consumer: which of them the client is told, and when."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pipeline.adapters.kafka.pauses import PATIENCE, Pauses
from pipeline.core.offsets import Partition

A, B, C = (Partition("jobs", number) for number in range(3))


def test_a_client_of_which_all_is_paused_is_left_alone_for_a_moment_and_then_told() -> None:
    pauses = Pauses()
    pauses.pause([A, B])
    assert pauses.resting({A, B}, 100.0)
    assert pauses.resting({A, B}, 100.0 + PATIENCE - 0.01)
    assert not pauses.resting({A, B}, 100.0 + PATIENCE)
    assert pauses.untold() == [A, B]
    assert not pauses.resting({A, B}, 200.0), "it knows, and may be asked again"
    assert pauses.untold() == []


def test_what_is_resumed_in_time_was_never_told() -> None:
    pauses = Pauses()
    pauses.pause([A, B])
    assert pauses.resting({A, B}, 100.0)
    assert pauses.resume([A, B]) == []
    assert not pauses.resting({A, B}, 100.1)
    assert pauses.untold() == []


def test_the_patience_begins_anew_with_the_next_pause() -> None:
    pauses = Pauses()
    pauses.pause([A])
    assert pauses.resting({A}, 100.0)
    pauses.resume([A])
    assert not pauses.resting({A}, 100.4)
    pauses.pause([A])
    assert pauses.resting({A}, 100.6)
    assert pauses.resting({A}, 101.0)


def test_a_part_is_paused_at_once() -> None:
    pauses = Pauses()
    pauses.pause([A])
    assert not pauses.resting({A, B}, 100.0)
    assert pauses.untold() == [A]
    assert pauses.resume([A, B]) == [A]
    assert pauses.resume([A]) == []


def test_the_rest_of_what_is_paused_in_part_is_left_alone_like_all() -> None:
    pauses = Pauses()
    pauses.pause([A])
    assert pauses.untold() == [A]
    pauses.pause([B])
    assert pauses.resting({A, B}, 100.0)
    assert pauses.resume([A, B]) == [A], "of B the client knows nothing"


def test_a_pause_ends_with_the_assignment() -> None:
    pauses = Pauses()
    pauses.pause([A, B])
    pauses.untold()
    pauses.forget([A])
    pauses.pause([B])
    assert not pauses.resting({B}, 100.0)
    assert pauses.untold() == []
    pauses.pause([A])
    assert pauses.untold() == [A], "it came back, and the client has forgotten"


def test_a_member_without_partitions_goes_on_asking() -> None:
    assert not Pauses().resting(set(), 100.0)


steps = st.lists(st.tuples(st.sampled_from(["pause", "resume", "told"]), st.sets(st.sampled_from([A, B, C]))))


@given(steps)
def test_the_client_that_was_told_everything_pauses_what_is_wanted_and_nothing_else(
    given_steps: list[tuple[str, set[Partition]]],
) -> None:
    pauses, wanted, client = Pauses(), set[Partition](), set[Partition]()
    for step, partitions in given_steps:
        if step == "pause":
            pauses.pause(partitions)
            wanted |= partitions
        elif step == "resume":
            client -= set(pauses.resume(partitions))
            wanted -= partitions
        else:
            client |= set(pauses.untold())
            assert client == wanted
        assert client <= wanted
