"""`pipeline job`: the story of a job, from the store alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.text import duration, indented, iso, one_line, printable, table, when
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome, JobStory
from pipeline.errors import JobNotFound

__all__ = ["command", "run_lines", "story_json"]

_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
# In these states the last run is told by the job's row; in the others it is the last of the attempts.
_RUN_IN_ROW = frozenset({JobState.RUNNING, JobState.COMPLETED, JobState.CANCELLED})


def _job_id(text: str) -> str:
    if not _JOB_ID.fullmatch(text):
        raise click.BadParameter(f"{text[:80]!r} is no job id; allowed: a UUID")
    return text.lower()


@click.group()
def command() -> None:
    """Look at single jobs."""


@command.command("show")
@click.argument("job_id", metavar="ID", type=_job_id)
@click.option("--stack", is_flag=True, help="With the stack of each error.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stacks; times in ISO 8601.")
@pass_session
def show_job(session: Session, job_id: str, *, stack: bool, as_json: bool) -> None:
    """Tell the whole story of job ID: where it is now, every run of it, and how each ended."""
    with closing(session.app(None).store()) as store:
        story = store.job(job_id)
    if story is None:
        raise JobNotFound(
            f"the store knows no job {job_id}: no worker has claimed it yet, or there is no such job"
        )
    if as_json:
        click.echo(json.dumps(story_json(story), indent=2))
    else:
        click.echo("\n".join([*_summary(story), "", *run_lines(story, stack=stack)]))


class _Run(NamedTuple):
    attempt: int
    token: int
    worker: str
    outcome: str
    started_at: float
    took: float
    reason: str
    failure: Failure | None


def _runs(story: JobStory) -> list[_Run]:
    runs = [
        _Run(a.attempt, a.token, a.worker_id, a.outcome.value, a.started_at, a.duration, a.reason, a.failure)
        for a in story.attempts
    ]
    if story.state in _RUN_IN_ROW:
        started_at = story.started_at or story.claimed_at
        last = (story.attempt, story.token, story.worker_id, story.state.value, started_at, story.duration)
        runs.append(_Run(*last, story.reason, None))
    return runs


def _takeovers(story: JobStory) -> int:
    return sum(attempt.outcome is AttemptOutcome.LOST for attempt in story.attempts)


def _replays(story: JobStory) -> int:
    deaths = sum(attempt.outcome is AttemptOutcome.DEAD for attempt in story.attempts)
    return deaths - 1 if story.state is JobState.DEAD and deaths else deaths


# --- as text


def _summary(story: JobStory) -> Iterator[str]:
    topic, partition, offset = story.source
    yield f"job       {story.job_id}"
    yield f"type      {printable(story.job_type)}"
    yield f"tenant    {printable(story.tenant)}"
    yield f"queue     {printable(story.queue)}"
    yield f"state     {_state(story)}"
    yield f"enqueued  {when(story.enqueued_at)}"
    yield f"record    {printable(topic)} {partition}:{offset} (the last one claimed)"
    if takeovers := _takeovers(story):
        yield f"rescued   {_times(takeovers)}, from workers that were gone"
    if story.crashes is not None:
        yield f"suspect   runs alone in a process{f', which it killed {_times(story.crashes)}' if story.crashes else ''}"
    if replays := _replays(story):
        yield f"replayed  {_times(replays)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _state(story: JobStory) -> str:
    if story.state is JobState.RUNNING:
        return f"running on {printable(story.worker_id)} since {when(story.claimed_at)}"
    if story.state is JobState.RETRYING:
        return f"retrying, due {when(story.due_at)}"
    reason = f", reason: {one_line(story.reason)}" if story.reason else ""
    return f"{story.state}{reason}, since {when(story.finished_at)}"


def run_lines(story: JobStory, *, stack: bool) -> list[str]:
    """A table of every run of a job; below it, if wanted, the stacks of their errors."""
    runs = _runs(story)
    head = ("ATTEMPT", "TOKEN", "WORKER", "STARTED", "TOOK", "OUTCOME", "WHY")
    lines = table(head, [_row(run, runs[i + 1 : i + 2]) for i, run in enumerate(runs)])
    for run in runs if stack else ():
        if run.failure is not None and run.failure.stack.strip():
            lines += ["", f"stack of attempt {run.attempt}, token {run.token}:"]
            lines += indented(run.failure.stack, "  ")
            lines += indented(f"{run.failure.error_class}: {run.failure.message}", "  ")
    return lines


def _row(run: _Run, following: list[_Run]) -> tuple[object, ...]:
    took = duration(run.took) if run.took or run.outcome == JobState.COMPLETED else "-"
    is_dead = run.outcome == AttemptOutcome.DEAD and run.reason
    outcome = f"{run.outcome}: {one_line(run.reason, 60)}" if is_dead else run.outcome
    started = when(run.started_at)
    return (run.attempt, run.token, printable(run.worker), started, took, outcome, _why(run, following))


def _why(run: _Run, following: list[_Run]) -> str:
    if run.outcome == AttemptOutcome.LOST:
        taken_over = f"; taken over by {printable(following[0].worker)}" if following else ""
        return f"its worker was gone{taken_over}"
    if run.failure is not None:
        return one_line(f"{run.failure.error_class}: {run.failure.message}", 160)
    return one_line(run.reason, 160)


# --- as JSON


def story_json(story: JobStory) -> dict[str, object]:
    """The same for machines. What is not there is null."""
    return {
        "job_id": story.job_id,
        "type": story.job_type,
        "tenant": story.tenant,
        "queue": story.queue,
        "state": story.state.value,
        "reason": story.reason or None,
        "attempt": story.attempt,
        "hop": story.hop,
        "token": story.token,
        "worker": story.worker_id,
        "record": story.source._asdict(),
        "enqueued_at": iso(story.enqueued_at),
        "claimed_at": iso(story.claimed_at),
        "started_at": iso(story.started_at),
        "finished_at": iso(story.finished_at),
        "due_at": iso(story.due_at),
        "takeovers": _takeovers(story),
        "crashes": story.crashes,
        "replays": _replays(story),
        "runs": [_run_json(run) for run in _runs(story)],
    }


def _run_json(run: _Run) -> dict[str, object]:
    return {
        "attempt": run.attempt,
        "token": run.token,
        "worker": run.worker,
        "outcome": run.outcome,
        "started_at": iso(run.started_at),
        "duration": round(run.took, 6) if run.took else None,
        "reason": run.reason or None,
        "error": run.failure._asdict() if run.failure else None,
    }
