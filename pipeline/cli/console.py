"""`pipeline console`: look into a topic, decoded."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.avro.events import decode_event
from pipeline.adapters.kafka.tail import BEGINNING, KafkaTail, ReadFrom
from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.text import iso
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.topics import TopicNames
from pipeline.errors import ConfigError, PipelineError
from pipeline.lookups import open_tail

__all__ = ["command"]

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WAIT_SECONDS = 0.5
RAW_BYTES = 512


@click.group()
def command() -> None:
    """Look into topics."""


@command.command("consume")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="beginning",
    show_default=True,
    help="beginning, end, an offset, PARTITION:OFFSET, a time in ISO 8601, or how long ago, as in 10m.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--tenant", help="Only this tenant's jobs.")
@click.option("--type", "job_type", help="Only jobs of this type.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many.")
@app_option
@pass_session
def _consume(
    session: Session,
    topic: str,
    start: str,
    *,
    follow: bool,
    tenant: str | None,
    job_type: str | None,
    limit: int | None,
    target: str | None,
) -> None:
    """Print the records of TOPIC, one JSON object a line: where they lie, headers, job, payload.

    No consumer group is joined and nothing is committed. What cannot be decoded is shown in base64, with the reason.
    """
    app = session.app(target)
    tail = open_tail(app.settings, topic, start=read_from(start, now=time.time()))
    printer = _Printer(app.codec(), app.names)
    with contextlib.suppress(KeyboardInterrupt):  # how --follow ends
        records = _records(tail, follow=follow)
        wanted = (record for record in records if printer.concerns(record, tenant=tenant, job_type=job_type))
        _print(wanted, printer, limit)


def _print(records: Iterator[Record], printer: _Printer, limit: int | None) -> None:
    for record in islice(records, limit):
        click.echo(json.dumps(printer.describe(record), default=str))


def read_from(text: str, *, now: float) -> ReadFrom:
    """What `--from` says. Raises `ConfigError`."""
    if text == "beginning":
        return BEGINNING
    if text == "end":
        return ReadFrom("end")
    if re.fullmatch(r"\d{1,18}", text):
        return ReadFrom("offset", int(text))
    if re.fullmatch(r"\d{1,6}:\d{1,18}", text):
        partition, _, offset = text.partition(":")
        return ReadFrom("offset", int(offset), int(partition))
    if ago := _AGO.fullmatch(text):
        return ReadFrom("time", max(0.0, now - float(ago[1]) * _UNITS[ago[2]]))
    try:
        moment = datetime.fromisoformat(text)
        return ReadFrom("time", (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--from is {text!r}; allowed: beginning, end, an offset, PARTITION:OFFSET, a time as 2026-01-31T12:00Z, or how "
            "long ago, as 90s, 10m, 2h, 1d"
        ) from None


def _records(tail: KafkaTail, *, follow: bool) -> Iterator[Record]:
    yield from tail.read_new()
    while follow:
        yield from tail.wait(_WAIT_SECONDS)


class _Printer:
    def __init__(self, codec: AvroCodec, names: TopicNames) -> None:
        self._codec = codec
        self._names = names

    def concerns(self, record: Record, *, tenant: str | None, job_type: str | None) -> bool:
        """Whether it is of this tenant and of this job type; None stands for any."""
        if tenant is None and job_type is None:
            return True
        if record.topic == self._names.events:
            with contextlib.suppress(PipelineError):
                event = decode_event(record.value or b"")
                return tenant in (None, event["tenant"]) and job_type in (None, event["job_type"])
            return False
        job, _ = parse_job(record, queue="")
        return tenant in (None, job.tenant) and job_type in (None, job.job_type)

    def describe(self, record: Record) -> dict[str, Any]:
        """A record as JSON values, whatever is in it."""
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": iso(record.timestamp),
            "key": _text(record.key),
            "headers": _headers(record),
            **self._value(record),
        }

    def _value(self, record: Record) -> Mapping[str, Any]:
        if record.value is None:
            return {"payload": None}
        try:
            if record.topic == self._names.events:
                return {"event": decode_event(record.value)}
            if record.topic == self._names.schemas:
                return {"fingerprint": (record.key or b"").hex(), "schema": json.loads(record.value)}
            return self._job(record, record.value)
        except (PipelineError, ValueError) as error:
            return {"error": str(error), **_raw(record.value)}

    def _job(self, record: Record, value: bytes) -> Mapping[str, Any]:
        job, problem = parse_job(record, queue="")
        if problem:
            return {"error": problem, **_raw(value)}
        described = self._codec.describe(job.job_type, value, job.schema_id)
        facts = {
            "id": job.job_id,
            "type": job.job_type,
            "tenant": job.tenant,
            "attempt": job.attempt,
            "hop": job.hop,
        }
        return {"job": facts, **described}


def _headers(record: Record) -> dict[str, Any]:
    """By name; one that is there more than once has all its values."""
    found: dict[str, Any] = {}
    for name, value in record.headers:
        if name in found:
            before = found[name] if isinstance(found[name], list) else [found[name]]
            found[name] = [*before, _text(value)]
        else:
            found[name] = _text(value)
    return found


def _text(value: bytes | None) -> str | None:
    """As text where it is UTF-8, else in hex."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _raw(value: bytes) -> dict[str, Any]:
    return {"bytes": len(value), "base64": base64.b64encode(value[:RAW_BYTES]).decode()}
