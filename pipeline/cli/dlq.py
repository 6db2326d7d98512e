"""`pipeline dlq`: list, show and replay dead letters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.dlq_show import letter_lines
from pipeline.cli.text import clip, iso, one_line, table, when
from pipeline.core.letters import Letter
from pipeline.core.selection import BadReference, Position, Selection, parse_reference
from pipeline.desk import desk, open_letter, replay_producer, replayer
from pipeline.runtime.dlq_replay import Account, Remark

__all__ = ["command"]

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_FLOWS = 40


def _reference(text: str) -> str | Position:
    try:
        return parse_reference(text)
    except BadReference as error:
        raise click.BadParameter(str(error)) from None


queue_option = click.option("--queue", help="Look at the DLQ of this queue only.")


def filters(function: Function) -> Function:
    """Options that choose letters. Each may be given several times: any of its values will do."""
    for name, metavar, text in reversed(
        (
            ("type", "TYPE", "Letters of this job type."),
            ("tenant", "TENANT", "Letters of this tenant."),
            ("reason", "REASON", "Letters that died for this reason, such as max_attempts."),
            ("error", "CLASS", "Letters whose last error is of this class, with or without its module."),
        )
    ):
        function = click.option(f"--{name}", f"{name}s", metavar=metavar, multiple=True, help=text)(function)
    return function


@click.group()
def command() -> None:
    """Look at dead letters, and replay them."""


# --- list


@command.command("list")
@queue_option
@filters
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The newest so many."
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON array; times in ISO 8601.")
@pass_session
def list_letters(
    session: Session,
    *,
    queue: str | None,
    types: tuple[str, ...],
    tenants: tuple[str, ...],
    reasons: tuple[str, ...],
    errors: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List dead letters, the newest first."""
    app = session.app(None)
    selection = _selection(types, tenants, reasons, errors)
    found = desk(app).newest(selection, limit=limit, queue=queue)
    if as_json:
        click.echo(json.dumps([_letter_json(letter) for letter in found.letters], indent=2))
        return
    if found.letters:
        click.echo("\n".join(_letter_table(found.letters, with_queue=len(app.settings.queues) > 1)))
    click.echo(_count_line(found.total, len(found.letters), filtered=bool(selection)), err=True)


def _selection(
    types: Sequence[str], tenants: Sequence[str], reasons: Sequence[str], errors: Sequence[str], **more: Any
) -> Selection:
    return Selection(
        job_types=frozenset(types),
        tenants=frozenset(tenants),
        reasons=frozenset(reasons),
        errors=frozenset(errors),
        **more,
    )


def _count_line(total: int, shown: int, *, filtered: bool) -> str:
    if not total:
        return "no dead letter fits" if filtered else "no dead letters"
    return _letters(total) if shown == total else f"the newest {shown} of {_letters(total)}"


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def _letter_table(letters: Sequence[Letter], *, with_queue: bool) -> list[str]:
    head = ["LETTER", "JOB", "TYPE", "TENANT", "REASON", "ATTEMPTS", "ERROR", "MESSAGE", "DEAD SINCE"]
    rows = [_letter_row(letter) for letter in letters]
    if with_queue:
        head.insert(0, "QUEUE")
        rows = [[letter.job.queue, *row] for letter, row in zip(letters, rows, strict=True)]
    return table(head, rows)


def _letter_row(letter: Letter) -> list[object]:
    job, last = letter.job, letter.last
    return [
        str(letter.position),
        job.job_id,
        clip(job.job_type, 40),
        clip(job.tenant, 30),
        clip(letter.reason, 30) or "-",
        job.attempt,
        clip(last.error_class, 40) or "-",
        one_line(last.message, 60) or "-",
        when(letter.dead_at),
    ]


def _letter_json(letter: Letter) -> dict[str, object]:
    job, last = letter.job, letter.last
    return {
        "queue": job.queue,
        **letter.position._asdict(),
        "job_id": job.job_id,
        "type": job.job_type,
        "tenant": job.tenant,
        "reason": letter.reason or None,
        "attempts": job.attempt,
        "hop": job.hop,
        "replays": job.replays,
        "error_class": last.error_class or None,
        "error_message": last.message or None,
        "dead_since": iso(letter.dead_at),
        "problem": letter.problem or None,
    }


# --- show


@command.command("show")
@click.argument("reference", metavar="ID|PARTITION:OFFSET", type=_reference)
@queue_option
@app_option
@pass_session
def show_letter(session: Session, reference: str | Position, queue: str | None, target: str | None) -> None:
    """Show one dead letter: payload, headers, errors with stacks, and what the store knows of its job.

    Of a job with several letters the newest is shown. With --app it is also tried whether the job type of today takes
    the payload.
    """
    app = session.app(target)
    letters = desk(app).find(reference, queue=queue)
    click.echo("\n".join(letter_lines(letters[0], open_letter(app, letters[0]), others=letters[1:])))


# --- replay


@command.command("replay")
@queue_option
@filters
@click.option(
    "--id",
    "ids",
    metavar="ID|PARTITION:OFFSET",
    multiple=True,
    type=_reference,
    help="This letter, or those of this job.",
)
@click.option("--all", "everything", is_flag=True, help="Every letter.")
@click.option("--execute", is_flag=True, help="Do it. Without this, only say what would be done.")
@pass_session
def replay(
    session: Session,
    *,
    queue: str | None,
    types: tuple[str, ...],
    tenants: tuple[str, ...],
    reasons: tuple[str, ...],
    errors: tuple[str, ...],
    ids: tuple[str | Position, ...],
    everything: bool,
    execute: bool,
) -> None:
    """Send dead letters back to the main topic of their queue: same id, key and payload, attempts from 1.

    Says what it would do; does it with --execute. Only the letters that are there when it starts are replayed. To
    replay a letter twice is safe: its job runs once. Exit code 1 when a letter could not be sent or was not found.
    """
    selection = _selection(types, tenants, reasons, errors, references=frozenset(ids))
    if everything == bool(selection):
        raise click.UsageError(
            "--all leaves nothing to choose: give either it or filters"
            if everything
            else "which letters? Name some with --id, --type, --tenant, --reason or --error, or take --all"
        )
    app = session.app(None)
    with replayer(app) as replays:
        if execute:
            with replay_producer(app) as producer:
                account = replays.execute(selection, producer=producer, queue=queue)
        else:
            account = replays.plan(selection, queue=queue)
    _tell(account, execute=execute)
    sys.exit(1 if account.failed or account.missing else 0)


def _tell(account: Account, *, execute: bool) -> None:
    if account.flows:
        click.echo("\n".join(_flow_table(account)))
    for line in (_headline(account, execute=execute), *_kept_lines(account), *_flagged_lines(account)):
        click.echo(line)
    for line in _trouble_lines(account):
        click.echo(line, err=True)


def _flow_table(account: Account) -> list[str]:
    shown = account.flows.most_common(MAX_FLOWS)
    rows = [
        (clip(flow.job_type, 40), clip(flow.tenant, 30), flow.target, count, account.undecodable[flow])
        for flow, count in shown
    ]
    lines = table(("TYPE", "TENANT", "TARGET", "LETTERS", "UNDECODABLE"), rows)
    hidden = account.flows.total() - sum(count for _, count in shown)
    return [*lines, f"... and {_letters(hidden)} more"] if hidden else lines


def _headline(account: Account, *, execute: bool) -> str:
    if not account.selected:
        return "nothing selected: no dead letter fits"
    of = f"of {_letters(account.selected)} selected"
    if execute:
        return f"replayed: {account.sent} {of}"
    again = "; nothing was sent, --execute does it" if account.sent else ""
    return f"to replay: {account.sent} {of}{again}"


def _kept_lines(account: Account) -> Iterator[str]:
    for standing, count in sorted(account.kept.items()):
        yield f"{standing.value}: {count}, left out"
    if account.copies:
        yield f"copies of letters: {account.copies}, left out"


def _flagged_lines(account: Account) -> Iterator[str]:
    total = account.undecodable.total()
    if total:
        yield f"undecodable here: {total}, replayed all the same; they die again unless the workers know better:"
        yield from _remark_lines(account.flagged, total)


def _trouble_lines(account: Account) -> Iterator[str]:
    if account.failed:
        yield f"not sent: {account.failed}; to replay again is safe:"
        yield from _remark_lines(account.failures, account.failed)
    if account.stopped:
        yield "given up: nothing of the last batch was taken; letters after it were not tried"
    for reference in sorted(map(str, account.missing)):
        yield f"not found: {reference}"
    if account.schema_problem:
        yield f"not every payload was looked at: {one_line(account.schema_problem)}"
    if account.store_problem:
        yield (
            f"Postgres was not asked which jobs went on since: {one_line(account.store_problem)}. "
            "Each letter still runs once at most."
        )


def _remark_lines(remarks: Sequence[Remark], total: int) -> Iterator[str]:
    for remark in remarks:
        yield f"  {remark.queue} {remark.position} job {remark.job_id}: {one_line(remark.text)}"
    if total > len(remarks):
        yield f"  ... and {total - len(remarks)} more"
