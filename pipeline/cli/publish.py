"""`pipeline publish`: one job from the command line."""

from __future__ import annotations

import json
import sys

import click

from pipeline.cli.common import Session, app_option, pass_session
from pipeline.errors import InvalidJob

__all__ = ["command"]


@click.command()
@click.argument("job_type", metavar="TYPE")
@click.argument("payload", metavar="JSON")
@click.option("--tenant", required=True, help="Whose job it is; its jobs share a partition.")
@click.option("--idempotency-key", help="Publishing again with the same key has no effect.")
@click.option("--ordering-key", help="Kept with the job.")
@app_option
@pass_session
def command(
    session: Session,
    job_type: str,
    payload: str,
    tenant: str,
    idempotency_key: str | None,
    ordering_key: str | None,
    target: str | None,
) -> None:
    """Publish one job of TYPE; JSON is its payload, or `-` to read it from standard input.

    Prints where it lies in the log, as JSON, once the broker has acknowledged it.
    """
    app = session.app(target)
    values = _read_object(sys.stdin.read() if payload == "-" else payload)
    with app.publisher(source="pipeline publish") as publisher:
        published = publisher.publish(
            job_type, values, tenant=tenant, idempotency_key=idempotency_key, ordering_key=ordering_key
        )
    click.echo(json.dumps(published._asdict()))


def _read_object(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidJob(f"payload is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidJob(f"payload is a JSON {type(values).__name__}; allowed: an object")
    return values
