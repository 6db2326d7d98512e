"""`pipeline breakers`: which job types are held back, and holding or releasing one by hand."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from math import inf, isinf

import click

from pipeline.adapters.avro.events import encode_breaker_event
from pipeline.app import Pipeline
from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.text import clip, iso, table, when
from pipeline.core.breaker import (
    CLOSED_CIRCUIT,
    BreakerKey,
    BreakerState,
    Circuit,
    Step,
    closed_by_hand,
    opened_by_hand,
)
from pipeline.core.events import BreakerChange, breaker_change
from pipeline.core.ports import Outgoing

__all__ = ["command"]


@click.group()
def command() -> None:
    """Look at circuit breakers, and open or close one by hand."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array; times in ISO 8601.")
@app_option
@pass_session
def list_breakers(session: Session, *, as_json: bool, target: str | None) -> None:
    """List breakers that are open, count failures or were changed in the last minute; with --app, every declared job type."""
    app = session.app(target)
    with closing(app.breakers()) as store:
        found = dict(store.look().circuits)
    for job_type in app.registry.job_types():
        if job_type.breaker is not None and not any(key.job_type == job_type.name for key in found):
            found[BreakerKey(job_type.name)] = CLOSED_CIRCUIT
    if as_json:
        click.echo(json.dumps([_as_json(key, found[key]) for key in sorted(found)], indent=2))
    elif found:
        click.echo("\n".join(_table(found)))
    else:
        click.echo("all breakers are closed, and nothing fails", err=True)


def _table(found: Mapping[BreakerKey, Circuit]) -> list[str]:
    head = ("TYPE", "TENANT", "STATE", "WHY", "IN A ROW", "OPENED", "SINCE", "NEXT TRY", "BY")
    return table(head, [_row(key, found[key]) for key in sorted(found)])


def _row(key: BreakerKey, circuit: Circuit) -> tuple[object, ...]:
    return (
        clip(key.job_type, 40),
        clip(key.tenant, 30) or "-",
        circuit.state.value.replace("_", "-"),
        circuit.reason or "-",
        circuit.streak,
        circuit.opened,
        when(circuit.changed_at),
        _next_try(circuit),
        clip(circuit.by, 40) or "-",
    )


def _next_try(circuit: Circuit) -> str:
    if circuit.state is BreakerState.CLOSED:
        return "-"
    if circuit.state is BreakerState.HALF_OPEN:
        return "now"
    return "never, close it" if isinf(circuit.retry_at) else when(circuit.retry_at)


def _as_json(key: BreakerKey, circuit: Circuit) -> dict[str, object]:
    return {
        "type": key.job_type,
        "tenant": key.tenant or None,
        "state": circuit.state.value,
        "reason": circuit.reason or None,
        "failures_in_a_row": circuit.streak,
        "opened": circuit.opened,
        "since": iso(circuit.changed_at),
        "next_try": None if isinf(circuit.retry_at) else iso(circuit.retry_at),
        "prober": circuit.prober or None,
        "by": circuit.by or None,
    }


_tenant = click.option("--tenant", default="", help="Only the jobs of this tenant.")
_by = click.option("--by", default=None, help="Who does it; by default the user and the machine.")


@command.command("open")
@click.argument("job_type", metavar="TYPE")
@_tenant
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0),
    default=None,
    metavar="SECONDS",
    help="Try one job after so long, and close if it succeeds; by default it stays open until it is closed by hand.",
)
@_by
@pass_session
def open_breaker(
    session: Session, *, job_type: str, tenant: str, seconds: float | None, by: str | None
) -> None:
    """Hold back the jobs of TYPE. No attempt is burnt; those that run now go on."""
    who = by or _who()
    held = inf if seconds is None else seconds
    _change(
        session,
        BreakerKey(job_type, tenant),
        lambda circuit, now: opened_by_hand(circuit, by=who, now=now, seconds=held),
    )


@command.command("close")
@click.argument("job_type", metavar="TYPE")
@_tenant
@_by
@pass_session
def close_breaker(session: Session, *, job_type: str, tenant: str, by: str | None) -> None:
    """Let the jobs of TYPE go on, gradually, whatever opened its breaker."""
    who = by or _who()
    _change(
        session, BreakerKey(job_type, tenant), lambda circuit, now: closed_by_hand(circuit, by=who, now=now)
    )


def _change(session: Session, key: BreakerKey, step: Step) -> None:
    """Change it, show it, and write that into the audit trail, which a breaker must not depend on."""
    before = CLOSED_CIRCUIT

    def watched(circuit: Circuit, now: float) -> Circuit:
        nonlocal before
        before = circuit
        return step(circuit, now)

    app = session.app(None)
    with closing(app.breakers()) as store:
        circuit = store.change({key: watched}).circuits[key]
    click.echo("\n".join(_table({key: circuit})))
    if circuit != before:
        _write_event(app, breaker_change(key, before, circuit, queue=""))


def _write_event(app: Pipeline, change: BreakerChange) -> None:
    record = Outgoing(app.names.events, change.job_type.encode(), encode_breaker_event(change), [])
    with closing(app.producer(app.settings.topics.max_message_bytes, linger_ms=0)) as producer:
        (end,) = producer.send_all([record])
    if end.error is not None:
        click.echo(f"done, but not written to {app.names.events}: {end.error}", err=True)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
