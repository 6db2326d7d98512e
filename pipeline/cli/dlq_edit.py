"""`pipeline dlq edit`: another payload for one letter."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import click

from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.dlq_options import operator_options, queue_option, read_reference
from pipeline.cli.dlq_replay import run_task, tell_report
from pipeline.core.desk import IndexedLetter, Scope, TaskKind
from pipeline.core.letter_facts import LetterState
from pipeline.core.letters import Letter
from pipeline.core.selection import Position, Selection
from pipeline.desk import OpenDesk, open_desk
from pipeline.errors import InvalidJob, PipelineError
from pipeline.runtime.dlq_records import whole
from pipeline.runtime.dlq_tasks import Operator, begin

__all__ = ["edit"]


class NotEditable(PipelineError):
    """A letter cannot be given another payload: it carries no job of ours, or it was dealt with."""


@click.command()
@click.argument("reference", metavar="ID|PARTITION:OFFSET", type=read_reference)
@click.option(
    "--payload", metavar="JSON", required=True, help="The new payload; - reads it from standard input."
)
@queue_option
@app_option
@click.option("--execute", is_flag=True, help="Do it. Without this, only check the payload and show both.")
@operator_options
@pass_session
def edit(
    session: Session,
    *,
    reference: str | Position,
    payload: str,
    queue: str | None,
    target: str | None,
    execute: bool,
    who: str,
    why: str,
) -> None:
    """Replay one letter with another payload, checked by its job type and written with its newest schema.

    The letter itself stays as it is; the payload before and after is kept with the task. Of a job with several letters
    the newest is meant. Needs --app, where the job type is declared.
    """
    if execute and not why:
        raise click.UsageError("--why is missing: whoever meets the other payload later will want to know")
    with open_desk(session.app(target)) as opened:
        caught = opened.desk.catch_up(queue)
        letter = _editable(opened, reference, queue)
        job_type = letter.job.job_type
        new = opened.encode(job_type, _read_json(payload))
        if not execute:
            for title, value in (("before", letter.record.value or b""), ("after", new)):
                click.echo(f"{title}: {_shown(opened, letter, value, is_new=title == 'after')}")
            click.echo("nothing was sent, --execute does it")
            return
        position = letter.position
        scope = Scope(Selection(references=frozenset([position])), [letter.job.queue], [LetterState.OPEN])
        here = letter.job.queue
        task = begin(
            opened.index,
            TaskKind.EDIT,
            scope,
            ends={here: {position.partition: caught[here].ends[position.partition]}},
            operator=Operator(who, why),
            options={"parked": True, "queues": [here]},
            values=(letter.record.value or b"", new),
        )
        sys.exit(tell_report(run_task(opened, task), selected=1))


def _editable(opened: OpenDesk, reference: str | Position, queue: str | None) -> Letter:
    letter, known = opened.desk.find(reference, queue=queue)[0]
    if letter.problem:
        raise NotEditable(f"letter {letter.position} carries no job that could run: {letter.problem}")
    if known is not None and known.state not in (LetterState.OPEN, LetterState.PARKED):
        raise NotEditable(f"letter {letter.position} is {_state(known)}; allowed: one that is open or parked")
    with closing(opened.app.parking()) as parking:
        return whole(letter, parking)


def _state(known: IndexedLetter) -> str:
    return f"{known.state} by task {known.task}" if known.task else known.state.value


def _read_json(text: str) -> str:
    given = sys.stdin.read() if text == "-" else text
    try:
        json.loads(given)
    except ValueError as error:
        raise InvalidJob(f"payload is not JSON: {error}") from None
    return given


def _shown(opened: OpenDesk, letter: Letter, value: bytes, *, is_new: bool) -> str:
    schema_id = b"" if is_new else letter.job.schema_id
    try:
        described = opened.codec.describe(letter.job.job_type, value, schema_id)
    except PipelineError as error:
        return f"{len(value)} bytes that cannot be decoded: {error}"
    return json.dumps(described["payload"], ensure_ascii=True, default=str)
