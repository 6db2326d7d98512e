"""Which versions wait in the topics, and can the newest read them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipeline.adapters.avro.checking import Checked, check_pair
from pipeline.adapters.avro.framing import frame_of
from pipeline.adapters.avro.parsing import ParsedSchema, parse
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.app import Pipeline
from pipeline.core.findings import Finding
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.writer_schemas import FindWriterSchema, WriterRef
from pipeline.errors import PayloadError, SchemaError
from pipeline.lookups import look_up_everywhere

__all__ = ["live_findings"]


class Waiting(NamedTuple):
    """Payloads of a job type that were written with one schema."""

    job_type: str
    ref: WriterRef


def live_findings(app: Pipeline, checked: Checked, write: Callable[[str], None]) -> list[Finding]:
    """Read all that is not committed yet in main and retry topics, and all dead letters. Raises `TopicsMissing`,
    `BrokerUnavailable`, `RegistryUnavailable`.
    """
    waiting = Counter(kind for record in _records(app) if (kind := _written_with(record)) is not None)
    find = look_up_everywhere(app.settings)
    findings: list[Finding] = []
    for each in sorted(waiting):
        found = _judge(each, waiting[each], checked, find)
        findings += found
        write(
            f"{waiting[each]} waiting: {each.job_type}, {each.ref}: {'refused' if found else 'can be read'}"
        )
    if not waiting:
        write("nothing waits in the topics")
    return findings


def _records(app: Pipeline) -> Iterator[Record]:
    settings = app.settings
    admin = KafkaAdmin(app.admin_config(), timeout=settings.kafka.request_timeout)
    config = consumer_config(
        settings.kafka.bootstrap_servers,
        group=f"{settings.namespace}.schemas",  # never joined
        extra=app.client_options("consumer"),
    )
    reader = KafkaReader(config, timeout=settings.kafka.request_timeout)
    for queue in settings.queues:
        group = settings.kafka.group or f"{settings.namespace}.{queue}"
        topics = [app.names.main(queue), *(app.names.retry(queue, tier) for tier in settings.retry.tiers)]
        committed = {
            place: position.committed or 0 for place, position in admin.group_lag(group, topics).items()
        }
        for topic in topics:
            start = {place.number: offset for place, offset in committed.items() if place.topic == topic}
            yield from reader.read(topic, start=start)
        yield from reader.read(app.names.dlq(queue))


def _written_with(record: Record) -> Waiting | None:
    """None for what no version of a schema could make readable."""
    job, problem = parse_job(record, queue="")
    try:
        return None if problem else Waiting(job.job_type, frame_of(record.value or b"", job.schema_id).ref)
    except PayloadError:
        return None


def _judge(each: Waiting, count: int, checked: Checked, find: FindWriterSchema) -> list[Finding]:
    versions = checked.versions.get(each.job_type)

    def finding(problem: str) -> Finding:
        place = str(checked.folder / each.job_type)
        return Finding(
            "live-version", place, "", "", f"{count} jobs wait that were written with {each.ref}: {problem}"
        )

    if versions is None:
        return [finding("there is no schema of this job type here")]
    if any(each.ref == ("fingerprint", version.fingerprint) for version in versions):
        return []  # judged with the files
    try:
        writer = _parsed(each.ref, find)
    except (SchemaError, PayloadError) as error:
        return [finding(str(error))]
    if writer is None:
        return [finding("it is neither here nor where it is looked up")]
    return [finding(f"{found.place}: {found.problem}") for found in check_pair(versions[-1], writer)]


def _parsed(ref: WriterRef, find: FindWriterSchema) -> ParsedSchema | None:
    text = find(ref)
    return None if text is None else parse(text, str(ref))
