"""Wiring of what publishers and workers ask about schemas: the topic of schemas, the registry. Used by `app` and commands."""

from __future__ import annotations

from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.tail import BEGINNING, KafkaTail, ReadFrom
from pipeline.adapters.registry import RegistryClient, RegistryHttp
from pipeline.config import Settings
from pipeline.core.clock import SystemClock
from pipeline.core.topics import TopicNames
from pipeline.core.writer_schemas import FindWriterSchema, WriterRef
from pipeline.errors import SchemaError
from pipeline.runtime.handlers import Registry
from pipeline.runtime.schemas import SchemaFinder, TopicSchemas

__all__ = ["look_up_everywhere", "open_tail", "schema_finder", "schema_registry", "use_registry_ids"]


LOOK_UP_SECONDS = 3.0  # for which no job is claimed, at most, when Kafka is away


def schema_finder(settings: Settings) -> SchemaFinder:
    """Looks up writer schemas that are not packaged. Nothing is connected before the first look-up."""
    registry = schema_registry(settings)
    topic = TopicNames(settings.namespace).schemas
    return SchemaFinder(
        topic=TopicSchemas(open_tail(settings, topic, timeout=LOOK_UP_SECONDS)).find,
        registry=registry.find if registry else None,
        clock=SystemClock(),
        retry_after=5 * settings.schema_registry.timeout,
    )


def look_up_everywhere(settings: Settings) -> FindWriterSchema:
    """The same without limits, for a command that must know for sure."""
    registry = schema_registry(settings)
    topic = TopicSchemas(open_tail(settings, TopicNames(settings.namespace).schemas))

    def find(ref: WriterRef) -> str | None:
        if ref.kind == "fingerprint":
            return topic.find(ref)
        return registry.find(ref) if registry else None

    return find


def schema_registry(settings: Settings, *, url: str = "") -> RegistryClient | None:
    """The registry at `url`, or else the one that the settings name, or None. Raises `ConfigError`."""
    own = settings.schema_registry
    if not (url or own.url):
        return None
    http = RegistryHttp(
        url or own.url,
        timeout=own.timeout,
        username=own.username,
        password=own.password.get_secret_value(),
        token=own.token.get_secret_value(),
        ca_file=own.ca_file,
    )
    return RegistryClient(http)


def use_registry_ids(codec: AvroCodec, registry: RegistryClient, declared: Registry) -> None:
    """Let the codec write the registry's prefix. Nothing is registered here: that is a step of the deployment.

    Raises `SchemaError` for a schema that is not registered, `RegistryUnavailable`.
    """
    for job_type in declared.job_types():
        written = codec.written(job_type.name)
        registered = registry.look_up(written.subject, written.text)
        if registered is None:
            raise SchemaError(
                f"{job_type.name} v{written.version} is not in the schema registry {registry.url} "
                f"under the subject {written.subject}: `pipeline schemas push` registers it"
            )
        codec.write_registry_id(job_type.name, *registered)


def open_tail(
    settings: Settings, topic: str, *, start: ReadFrom = BEGINNING, timeout: float = float("inf")
) -> KafkaTail:
    """A topic that is read outside any group, to its end and on. A wait is given up after `timeout` seconds, if that is
    less than what the settings allow.
    """
    config = consumer_config(
        settings.kafka.bootstrap_servers,
        group=f"{settings.namespace}.tail",  # librdkafka wants one; it is never joined
        extra={**settings.kafka.options, **settings.kafka.consumer_options},
    )
    return KafkaTail(config, topic, timeout=min(settings.kafka.request_timeout, timeout), start=start)
