"""`pipeline dlq audit`: who did what with dead letters, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.text import clip, iso, one_line, printable, table, when
from pipeline.core.desk import Task, TaskKind, Told
from pipeline.desk import open_desk
from pipeline.runtime.dlq_tasks import TaskRefused

__all__ = ["audit"]

PREVIEW_BYTES = 256


@click.command()
@click.argument("task", type=click.IntRange(min=1), required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most so many tasks, or letters.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; times in ISO 8601.")
@pass_session
def audit(session: Session, *, task: int | None, limit: int, as_json: bool) -> None:
    """List what was done with dead letters, the latest first; or tell of TASK what came of each letter."""
    with open_desk(session.app(None)) as opened:
        found = opened.index.tasks(task=task or 0, limit=limit)
        outcomes = opened.index.outcomes_of_task(task, limit=limit) if task else []
    if task and not found:
        raise TaskRefused(f"there is no task {task}; `pipeline dlq audit` lists those there are")
    if as_json:
        told = [_task_json(each) for each in found]
        body = {**told[0], "letters": [_told_json(each) for each in outcomes]} if task else told
        click.echo(json.dumps(body, indent=2))
    elif task:
        click.echo("\n".join(_task_lines(found[0], outcomes)))
    elif found:
        click.echo("\n".join(_task_table(found)))


def _task_table(tasks: Sequence[Task]) -> list[str]:
    head = ("TASK", "WHAT", "STATE", "BEGUN", "WHO", "WHICH", "COUNTS", "WHY")
    rows = [
        (
            str(task.id),
            task.kind.value,
            task.state.value,
            when(task.created_at),
            clip(task.who, 40),
            one_line(_which(task), 60),
            _counts(task),
            one_line(task.why, 60) or "-",
        )
        for task in tasks
    ]
    return table(head, rows)


def _which(task: Task) -> str:
    return json.dumps(task.selection.to_json()) if task.selection else "all"


def _counts(task: Task) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(task.counts.items()) if count) or "-"


def _task_lines(task: Task, outcomes: Sequence[Told]) -> Iterator[str]:
    yield f"task       {task.id}: {task.kind}, {task.state}"
    yield f"who        {printable(task.who)}"
    yield f"why        {printable(task.why) or '-'}"
    yield f"which      {printable(_which(task))}"
    yield f"options    {printable(json.dumps(dict(task.options)))}"
    yield f"begun      {when(task.created_at)}"
    yield f"ended      {when(task.finished_at)}"
    yield f"counts     {_counts(task)}"
    if task.kind is TaskKind.EDIT:
        yield f"before     {_value(task.old_value)}"
        yield f"after      {_value(task.new_value)}"
    if outcomes:
        head = ("LETTER", "QUEUE", "JOB", "BECAME", "AT", "RECORD", "DETAIL")
        yield ""
        yield from table(head, [_told_row(each) for each in outcomes])


def _value(value: bytes | None) -> str:
    shown = (value or b"")[:PREVIEW_BYTES].hex()
    more = "..." if value and len(value) > PREVIEW_BYTES else ""
    return f"{len(value or b'')} bytes: {shown}{more}"


def _told_row(told: Told) -> tuple[str, ...]:
    outcome, target = told.outcome, told.outcome.target
    return (
        str(outcome.position),
        printable(told.queue),
        told.job_id,
        outcome.state.value,
        when(told.at),
        f"{printable(target.topic)} {target.partition}:{target.offset}" if target else "-",
        one_line(outcome.detail, 80) or "-",
    )


def _task_json(task: Task) -> dict[str, object]:
    return {
        "task": task.id,
        "kind": task.kind.value,
        "state": task.state.value,
        "who": task.who,
        "why": task.why,
        "selection": task.selection.to_json(),
        "options": dict(task.options),
        "ends": task.ends,
        "counts": dict(task.counts),
        "created_at": iso(task.created_at),
        "updated_at": iso(task.updated_at),
        "finished_at": iso(task.finished_at),
        "old_value": task.old_value.hex() if task.old_value is not None else None,
        "new_value": task.new_value.hex() if task.new_value is not None else None,
    }


def _told_json(told: Told) -> dict[str, object]:
    outcome = told.outcome
    return {
        "queue": told.queue,
        **outcome.position._asdict(),
        "job_id": told.job_id,
        "state": outcome.state.value,
        "detail": outcome.detail or None,
        "at": iso(told.at),
        "record": outcome.target._asdict() if outcome.target else None,
    }
