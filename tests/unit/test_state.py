"""The table of states: every documented move is there, and any other raises."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.state import TRANSITIONS, UNFINISHED, IllegalMove, JobState, Trigger, move
from pipeline.errors import PipelineError

STATES, TRIGGERS = st.sampled_from(JobState), st.sampled_from(Trigger)

DOCUMENTED = """
    pending-schedule->scheduled            pending-enqueue->queued          scheduled-timer_fired->queued
    queued-worker_claimed->running         running-success->completed       running-error->failed
    failed-retry_scheduled->retrying       retrying-retry_ready->queued     failed-max_retries_exceeded->dead
    retrying-max_retries_exceeded->dead    dead-replay->queued
    pending-cancel->cancelled              scheduled-cancel->cancelled      queued-cancel->cancelled
    running-cancel->cancelled              failed-cancel->cancelled         retrying-cancel->cancelled
"""
# A takeover from a dead worker, a snooze and a rejection have names of their own.
OURS = "running-lease_expired->queued  running-snoozed->retrying  failed-rejected->dead"


def moves(text: str) -> set[tuple[JobState, Trigger, JobState]]:
    found = set()
    for arrow in text.split():
        state, _, rest = arrow.partition("-")
        trigger, _, following = rest.partition("->")
        found.add((JobState(state), Trigger(trigger), JobState(following)))
    return found


def test_the_table_has_the_documented_moves_and_no_others() -> None:
    table = {(state, trigger, following) for (state, trigger), following in TRANSITIONS.items()}
    assert table == moves(DOCUMENTED) | moves(OURS)


@given(state=STATES, trigger=TRIGGERS)
def test_a_move_follows_the_table_or_raises(state: JobState, trigger: Trigger) -> None:
    if (state, trigger) in TRANSITIONS:
        assert move(state, trigger) is TRANSITIONS[state, trigger]
    else:
        with pytest.raises(IllegalMove):
            move(state, trigger)


def test_an_illegal_move_names_the_state_the_trigger_and_what_is_allowed() -> None:
    with pytest.raises(IllegalMove) as caught:
        move(JobState.COMPLETED, Trigger.SUCCESS)
    assert str(caught.value) == "a completed job cannot move by success; allowed: none"
    with pytest.raises(IllegalMove, match="a dead job cannot move by cancel; allowed: replay"):
        move(JobState.DEAD, Trigger.CANCEL)
    assert isinstance(caught.value, PipelineError)


@given(triggers=st.lists(TRIGGERS, max_size=40))
def test_a_finished_job_stays_finished_except_for_a_replay(triggers: list[Trigger]) -> None:
    state = JobState.PENDING
    for trigger in triggers:
        if (state, trigger) not in TRANSITIONS:
            continue
        following = move(state, trigger)
        if state not in UNFINISHED:
            assert (state, trigger) == (JobState.DEAD, Trigger.REPLAY)
        state = following


def test_every_state_can_be_reached_and_every_unfinished_one_can_end() -> None:
    reachable, grown = {JobState.PENDING}, True
    while grown:
        following = {TRANSITIONS[s, t] for s, t in product(reachable, Trigger) if (s, t) in TRANSITIONS}
        grown, reachable = not following <= reachable, reachable | following
    assert reachable == set(JobState)
    for state in UNFINISHED:
        assert move(state, Trigger.CANCEL) is JobState.CANCELLED
