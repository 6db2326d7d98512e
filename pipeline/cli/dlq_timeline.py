"""What happened to the job of a dead letter, in order of time."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.cli.text import one_line, printable, when
from pipeline.core.desk import Task, Told
from pipeline.core.letters import Letter
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome, AttemptStory, JobStory
from pipeline.desk import OpenedLetter

__all__ = ["timeline_lines"]

_ENDED = {JobState.COMPLETED: "completed", JobState.CANCELLED: "cancelled"}
Moment = tuple[float, str]


def timeline_lines(letter: Letter, opened: OpenedLetter) -> list[str]:
    """A line for each moment that is known."""
    moments = [
        (letter.job.enqueued_at, "enqueued"),
        (letter.dead_at, f"died: {one_line(letter.reason, 60) or 'no reason told'}"),
        *_of_story(opened.story),
        *(_of_task(told, opened.tasks.get(told.task)) for told in opened.told),
    ]
    return [f"  {when(at)}  {text}" for at, text in sorted(moments) if at > 0]


def _of_story(story: JobStory | None) -> Iterator[Moment]:
    if story is None:
        return
    for attempt in story.attempts:
        yield attempt.started_at, f"attempt {attempt.attempt} began on {printable(attempt.worker_id)}"
        yield attempt.finished_at, _end(attempt)
    if story.state is JobState.RUNNING:
        yield story.claimed_at, f"attempt {story.attempt} runs on {printable(story.worker_id)}"
    if story.state in _ENDED:
        yield story.started_at, f"attempt {story.attempt} began on {printable(story.worker_id)}"
        yield story.finished_at, _ENDED[story.state]


def _end(attempt: AttemptStory) -> str:
    if attempt.outcome is AttemptOutcome.LOST:
        return f"attempt {attempt.attempt} was lost with its worker"
    why = f": {one_line(attempt.failure.error_class, 80)}" if attempt.failure else ""
    return f"attempt {attempt.attempt} ended, {attempt.outcome}{why}"


def _of_task(told: Told, task: Task | None) -> Moment:
    outcome = told.outcome
    parts = [f"letter {outcome.position} {outcome.state} by task {told.task}"]
    if task is not None:
        parts.append(f"of {printable(task.who)}" + (f" ({one_line(task.why, 80)})" if task.why else ""))
    if outcome.target is not None:
        topic, partition, offset = outcome.target
        parts.append(f"as {printable(topic)} {partition}:{offset}")
    elif outcome.detail:
        parts.append(one_line(outcome.detail, 80))
    return told.at, ", ".join(parts)
