"""`pipeline dlq park`, `discard` and `reopen`: letters are moved in the index; what they are stays in the topic."""

from __future__ import annotations

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.dlq_options import Chosen, choosing, need_choice, operator_options
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_rows import letters_text
from pipeline.cli.text import clip, table, when
from pipeline.core.desk import TaskKind
from pipeline.desk import open_desk
from pipeline.runtime.dlq_tasks import MOVES, Operator, move

__all__ = ["discard", "park", "reopen"]

MAX_GROUPS = 20
_DONE = {TaskKind.PARK: "parked", TaskKind.DISCARD: "discarded", TaskKind.REOPEN: "opened again"}


def _mover(kind: TaskKind, text: str) -> click.Command:
    @click.command(kind.value, help=text)
    @choosing
    @click.option("--all", "everything", is_flag=True, help="Every letter.")
    @click.option("--execute", is_flag=True, help="Do it. Without this, only say what would be done.")
    @operator_options
    @pass_session
    def command(
        session: Session, *, chosen: Chosen, everything: bool, execute: bool, who: str, why: str
    ) -> None:
        need_choice(chosen, everything=everything)
        if kind is TaskKind.DISCARD and execute and not why:
            raise click.UsageError(
                "--why is missing: whoever looks for these letters later will want to know"
            )
        _move(session, kind, chosen, execute=execute, operator=Operator(who, why))

    return command


def _move(session: Session, kind: TaskKind, chosen: Chosen, *, execute: bool, operator: Operator) -> None:
    with open_desk(session.app(None)) as opened:
        selection = chosen.selection(opened)
        with meter("index") as told:
            caught = opened.desk.catch_up(chosen.queue, on_read=told.tell)
        scope = opened.desk.scope(selection, queue=chosen.queue, states=MOVES[kind][0])
        if execute:
            ends = {queue: each.ends for queue, each in caught.items()}
            task, moved = move(opened.index, kind, scope, ends=ends, operator=operator)
            click.echo(f"{_DONE[kind]}: {letters_text(moved)} (task {task})")
            return
        groups = opened.index.groups(scope, ["type", "tenant", "reason"], limit=MAX_GROUPS)
        total = opened.index.count(scope)
    if groups:
        head = ("TYPE", "TENANT", "REASON", "LETTERS", "OLDEST", "NEWEST")
        rows = [
            (
                *(clip(value, 40) for value in group.values),
                group.letters,
                when(group.oldest),
                when(group.newest),
            )
            for group in groups
        ]
        click.echo("\n".join(table(head, rows)))
    click.echo(f"to be {_DONE[kind]}: {letters_text(total)}" + ("; --execute does it" if total else ""))


park = _mover(
    TaskKind.PARK,
    "Set letters aside: a replay leaves them out unless it is told --parked. The way back is reopen.",
)
discard = _mover(
    TaskKind.DISCARD,
    "Give letters up: nobody will replay them, and a purge may forget them. While they are in the topic, reopen undoes it.",
)
reopen = _mover(TaskKind.REOPEN, "Open letters again that were parked or discarded.")
