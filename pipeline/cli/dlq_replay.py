"""`pipeline dlq replay`: a plan first, then a task that can be stopped and resumed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.dlq_options import Chosen, choosing, need_choice, operator_options
from pipeline.cli.dlq_plan import plan_lines, plan_problems
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_rows import letters_text
from pipeline.cli.text import one_line
from pipeline.core.desk import Scope, Task, TaskKind, TaskState
from pipeline.desk import OpenDesk, open_desk
from pipeline.errors import PipelineError
from pipeline.runtime.dlq_plan import Plan, make_plan
from pipeline.runtime.dlq_records import Targets
from pipeline.runtime.dlq_replay import Progress, Report, run_replay
from pipeline.runtime.dlq_tasks import Operator, begin, resume

__all__ = ["replay", "run_task", "tell_report"]

INTERRUPTED = 130  # what a shell expects of a command that was stopped by Ctrl-C
_KEPT = (
    ("replayed", "already replayed"),
    ("completed", "completed"),
    ("cancelled", "cancelled"),
    ("unsettled", "not settled yet"),
    ("copies", "copies of letters"),
    ("untargeted", "from nowhere that is known"),
)


@click.command()
@choosing
@click.option("--all", "everything", is_flag=True, help="Every letter.")
@click.option("--parked", is_flag=True, help="Letters that were parked, too.")
@click.option(
    "--to", metavar="TOPIC", default="", help="Send them to this main topic instead of where they came from."
)
@click.option(
    "--rate", metavar="N", type=click.FloatRange(min=0.01), help="At most so many letters a second."
)
@click.option(
    "--max-lag",
    metavar="N",
    type=click.IntRange(min=0),
    help="Hold back while workers are so many records behind; 0: never.  [default: the setting dlq.max_lag]",
)
@click.option("--execute", is_flag=True, help="Do it. Without this, only say what would be done.")
@click.option(
    "--resume",
    "number",
    metavar="TASK",
    type=click.IntRange(min=1),
    help="Go on with a replay that was stopped.",
)
@operator_options
@pass_session
def replay(
    session: Session,
    *,
    chosen: Chosen,
    everything: bool,
    parked: bool,
    to: str,
    rate: float | None,
    max_lag: int | None,
    execute: bool,
    number: int | None,
    who: str,
    why: str,
) -> None:
    """Send dead letters back to where they came from: same id, key and payload, attempts from 1.

    Says what it would do; does it with --execute. Only the letters that are there when it starts are replayed, each once
    in effect, however often and from however many places it is done. Ctrl-C stops it in order, and --resume goes on, also
    after a crash. Exit code 1 when a letter could not be sent or was not found.
    """
    if number is None:
        need_choice(chosen, everything=everything)
    elif chosen or everything or to or parked:
        raise click.UsageError("--resume goes on with the letters that were chosen before: give no others")
    with open_desk(session.app(None)) as opened:
        if number is not None:
            task = resume(opened.index, number)
            sys.exit(tell_report(run_task(opened, task, rate=rate, max_lag=max_lag), selected=None))
        planned = _Planned(opened, chosen, parked=parked, to=to)
        if not execute:
            planned.tell()
            sys.exit(1 if planned.missing else 0)
        sys.exit(_execute(planned, operator=Operator(who, why), rate=rate, max_lag=max_lag))


class _Planned:
    """What is chosen, and what a replay would do with it now."""

    def __init__(self, opened: OpenDesk, chosen: Chosen, *, parked: bool, to: str) -> None:
        self.opened = opened
        self.options: dict[str, Any] = {"to": to, "parked": parked}
        selection = chosen.selection(opened)
        targets = opened.targets(to)
        with meter("index") as told:
            caught = opened.desk.catch_up(chosen.queue, on_read=told.tell)
        self.scope: Scope = opened.desk.scope(selection, queue=chosen.queue)
        self.ends = {queue: each.ends for queue, each in caught.items()}
        self.missing = opened.desk.missing(selection, queue=chosen.queue)
        groups = opened.index.plan(self.scope, self.ends, max_replays=opened.app.settings.dlq.max_replays)
        self.plan: Plan = make_plan(groups, targets=targets, check_schema=opened.check_schema, parked=parked)

    def tell(self) -> None:
        click.echo("\n".join(plan_lines(self.plan)))
        problems = [*plan_problems(self.plan, self.opened.absent(self.plan.topics)), *self.not_found()]
        if not self.plan.selected:
            problems += _reason_hint(self.scope)
        for line in problems:
            click.echo(line, err=True)

    def not_found(self) -> list[str]:
        return [f"not found: {reference}" for reference in sorted(map(str, self.missing))]


def _reason_hint(scope: Scope) -> list[str]:
    reasons = scope.selection.reasons
    if not reasons:
        return []
    return [
        f"--reason chooses letters that died for {', '.join(sorted(reasons))}; to say why you do it there is --why"
    ]


def _execute(planned: _Planned, *, operator: Operator, rate: float | None, max_lag: int | None) -> int:
    plan, opened = planned.plan, planned.opened
    if not plan.to_send and not plan.kept["worn"]:
        click.echo("\n".join(plan_lines(plan, executed=True)))
        for line in planned.not_found():
            click.echo(line, err=True)
        return 1 if planned.missing else 0
    options = {**planned.options, "queues": list(planned.scope.queues), "topics": sorted(plan.topics)}
    task = begin(
        opened.index, TaskKind.REPLAY, planned.scope, ends=planned.ends, operator=operator, options=options
    )
    click.echo("\n".join(plan_lines(plan, executed=True)))
    code = tell_report(run_task(opened, task, rate=rate, max_lag=max_lag), selected=plan.selected)
    for line in planned.not_found():
        click.echo(line, err=True)
    return code or (1 if planned.missing else 0)


# --- running a task


def run_task(
    opened: OpenDesk, task: Task, *, rate: float | None = None, max_lag: int | None = None
) -> Report:
    """Run a task to its end, or until Ctrl-C. What ends it otherwise says how to go on, and is raised."""
    settings = opened.app.settings.dlq
    stop = threading.Event()
    targets: Targets = opened.targets(task.options.get("to", ""))
    with (
        opened.tools(
            targets=targets,
            watched=task.options.get("topics", ()),
            rate=rate or 0.0,
            max_lag=settings.max_lag if max_lag is None else max_lag,
            stop=stop,
        ) as tools,
        _stopped_by_signals(stop),
        meter("replay") as told,
    ):

        def tell(progress: Progress) -> None:
            told.tell(
                progress.dealt_with,
                progress.wanted,
                note=progress.holding,
                task=progress.task,
                sent=progress.sent,
                failed=progress.failed,
            )

        try:
            return run_replay(tools, task, tell=tell)
        except PipelineError:
            click.echo(_how_to_go_on(task.id), err=True)
            raise


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C, or SIGTERM, ends the work after the batch in hand; the second one at once."""
    ours = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in ours}

    def ask(_number: int, _frame: object) -> None:
        stop.set()
        for number in ours:
            signal.signal(number, before[number])

    for number in ours:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _how_to_go_on(task: int) -> str:
    return f"task {task} is not done; to go on: pipeline dlq replay --resume {task}"


# --- telling what it did


def tell_report(report: Report, *, selected: int | None) -> int:
    """Print what a task did; give the exit code."""
    of = f" of {letters_text(selected)} selected" if selected is not None else ""
    click.echo(f"replayed: {report.counts['sent']}{of} (task {report.task})")
    for line in _report_lines(report):
        click.echo(line)
    for line in _trouble_lines(report):
        click.echo(line, err=True)
    if report.state is TaskState.PAUSED:
        return INTERRUPTED
    return 1 if report.counts["failed"] or report.state is not TaskState.DONE else 0


def _report_lines(report: Report) -> Iterator[str]:
    for name, text in _KEPT:
        if count := report.counts[name]:
            yield f"{text}: {count}, left out"
    if parked := report.counts["parked"]:
        yield f"replayed too often: {parked}, parked"
    left = report.wanted - report.dealt_with
    if left > 0 and report.state is TaskState.DONE:
        yield f"in the hands of another task, or changed meanwhile: {left}, left out"


def _trouble_lines(report: Report) -> Iterator[str]:
    if failed := report.counts["failed"]:
        yield f"not sent: {failed}; to replay again is safe:"
        yield from remark_lines(report)
    if report.state is TaskState.FAILED:
        yield "given up: nothing of the last batch was taken; letters after it were not tried"
    if report.state is not TaskState.DONE:
        yield _how_to_go_on(report.task)


def remark_lines(report: Report) -> Sequence[str]:
    """The first few letters that could not be sent."""
    shown = [
        f"  {remark.queue} {remark.position} job {remark.job_id}: {one_line(remark.text)}"
        for remark in report.failures
    ]
    more = report.counts["failed"] - len(shown)
    return [*shown, f"  ... and {more} more"] if more > 0 else shown
