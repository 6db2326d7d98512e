"""`pipeline dlq export`: letters whole, one JSON object a line."""

from __future__ import annotations

import base64
import json
from typing import TextIO

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.dlq_options import Chosen, choosing
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_rows import STATES, letter_json, letters_text, states_of
from pipeline.core.letters import Letter
from pipeline.desk import OpenDesk, open_desk
from pipeline.errors import PipelineError
from pipeline.runtime.dlq import Found

__all__ = ["export"]


@click.command()
@choosing
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Letters in this state; by default those that wait.",
)
@click.option(
    "--out",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    metavar="FILE",
    help="Where to; by default standard output.",
)
@pass_session
def export(session: Session, *, chosen: Chosen, states: tuple[str, ...], out: TextIO) -> None:
    """Write letters out, one JSON object a line: key and payload in base64, the payload decoded as well, all headers.

    Without filters all that wait. Times are in ISO 8601.
    """
    count = 0
    with open_desk(session.app(None)) as opened, meter("export") as told:
        selection = chosen.selection(opened)
        caught = opened.desk.catch_up(chosen.queue)
        scope = opened.desk.scope(selection, queue=chosen.queue, states=states_of(states))
        total = opened.index.count(scope)
        ends = {queue: each.ends for queue, each in caught.items()}
        for found in opened.desk.every(scope, ends):
            out.write(json.dumps(_letter(opened, found), ensure_ascii=False, default=str) + "\n")
            count += 1
            told.tell(count, total)
    click.echo(f"exported: {letters_text(count)}", err=True)


def _letter(opened: OpenDesk, found: Found) -> dict[str, object]:
    letter, known = found
    assert known is not None
    record = letter.record
    return {
        **letter_json(known),
        "topic": record.topic,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [
            {"name": name, "value": _base64(value), "text": _text(value)} for name, value in record.headers
        ],
        **_payload(opened, letter),
    }


def _payload(opened: OpenDesk, letter: Letter) -> dict[str, object]:
    try:
        described = opened.codec.describe(
            letter.job.job_type, letter.record.value or b"", letter.job.schema_id
        )
    except PipelineError as error:
        return {"payload": None, "undecodable": str(error)}
    return {"payload": described["payload"], "payload_schema": described["schema"]}


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
