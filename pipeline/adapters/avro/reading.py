"""Bytes to values: decoding, resolution to the newest version, and upcasters in between.

What a decoder or an upcaster raises quotes the payload. So the errors here do without its message, and are raised once it is out
of the way: "from None" would only hide it, and native code knows no "from".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from pipeline.adapters.avro.bounded import BoundedBuffer
from pipeline.adapters.avro.catalog import SchemaVersion
from pipeline.adapters.avro.decoding import Cursor, Node, decoder
from pipeline.adapters.avro.safety import may_skip_for_ever
from pipeline.adapters.avro.writers import Writer
from pipeline.core.job_type import Upcaster
from pipeline.errors import PayloadError, SchemaError

__all__ = ["Reader", "Upcasting", "read"]

Lift = Callable[[Any], Any]


@dataclass(frozen=True)
class Reader:
    """How payloads of one writer schema are decoded, from position `start` on.

    `target` is None when writer and reader are the same; `lift` brings what an old version said to the newest. `bounded`:
    what is skipped could be endless; it takes longer to read with care. `node` reads for a model what was written with the schema
    that it is read with: a uuid stays text, which a model takes at less cost.
    """

    writer: Writer
    target: dict[str, Any] | None
    start: int
    lift: Lift | None = None
    bounded: bool = False
    node: Node | None = None


def read(job_type: str, data: bytes, reader: Reader) -> Any:
    """Decode. Raises `PayloadError`, and nothing else, whatever the bytes are."""
    node = reader.node
    try:
        if node is None:
            values, end = _resolved(data, reader)
        else:
            cursor = Cursor(data, reader.start)
            values, end = node.read(cursor), cursor.at
    except Exception as error:  # noqa: BLE001 - decoders raise anything on bad bytes
        # An IndexError of a node is of a byte beyond the last one; a choice that there is not is a ValueError.
        early = isinstance(error, EOFError) or (node is not None and isinstance(error, IndexError))
        reason = "they end too early" if early else type(error).__name__
    else:
        if end == len(data):
            return values if reader.lift is None else reader.lift(values)
        reason = "they end too early" if end > len(data) else f"{len(data) - end} bytes too many"
    label = reader.writer.parsed.label
    raise PayloadError(f"{job_type}: {len(data)} bytes that are not a valid {label}: {reason}")


def _resolved(data: bytes, reader: Reader) -> tuple[Any, int]:
    """The values as the target has them, and where they end."""
    # One byte more than there is: a field that is skipped although it is cut short reads past the end of
    # the payload without an error, and only the position betrays it.
    buffer = (BoundedBuffer if reader.bounded else BytesIO)(data + b"\x00")
    buffer.seek(reader.start)
    return schemaless_reader(buffer, reader.writer.reading, reader.target), buffer.tell()


class Upcasting:
    """The way of old payloads to the newest version, through upcasters.

    A payload of version k is decoded as the first version from k on that has an upcaster, given to it, written as the
    version after, decoded as the next that has one, and so on to the newest. Writing it out in between is slow, but
    exact: Avro's own rules fill in and drop fields, and what an upcaster got wrong is refused where it happened.
    """

    def __init__(self, writers: Sequence[Writer], upcasters: Mapping[int, Upcaster]) -> None:
        """`writers` are all packaged versions that payloads tell apart. Raises `SchemaError`."""
        self._writers = {w.parsed.version: w for w in writers if isinstance(w.parsed, SchemaVersion)}
        self._newest = max(self._writers)
        self._upcasters = upcasters
        able = sorted(self._writers.keys() - {self._newest})
        for version in sorted(upcasters.keys() - able):
            raise SchemaError(
                f"{writers[0].parsed.label}: there is an upcaster from v{version}; allowed: from one of {able}, "
                "the versions before the newest that differ in more than documentation and defaults"
            )

    def reader(self, writer: Writer, *, start: int) -> Reader:
        """How payloads of that writer are decoded. One that is not packaged has no upcasters."""
        version = writer.parsed.version if isinstance(writer.parsed, SchemaVersion) else self._newest
        steps = [step for step in sorted(self._upcasters) if step >= version]
        first = self._writers[steps[0] if steps else self._newest]
        if writer is first and not steps:
            return Reader(writer, None, start, node=decoder(writer.parsed.schema, writer.parsed.named))
        target = None if writer is first else first.reading
        bounded = target is not None and may_skip_for_ever(writer.parsed.schema, writer.parsed.named)
        return Reader(writer, target, start, self._lift(steps) if steps else None, bounded)

    def _lift(self, steps: Sequence[int]) -> Lift:
        ends = [*steps[1:], self._newest]
        hops = [self._hop(step, end) for step, end in zip(steps, ends, strict=True)]

        def lift(values: Any) -> Any:
            for hop in hops:
                values = hop(values)
            return values

        return lift

    def _hop(self, step: int, end: int) -> Lift:
        upcast, target = self._upcasters[step], self._writers[end]
        after = self._writers[min(version for version in self._writers if version > step)]

        def hop(values: Any) -> Any:
            buffer = BytesIO()
            try:
                schemaless_writer(buffer, after.parsed.schema, upcast(values), strict_allow_default=True)
                buffer.seek(0)
                return schemaless_reader(buffer, after.reading, None if after is target else target.reading)
            except Exception as error:  # noqa: BLE001 - it is a user's function
                raised = type(error).__name__
            raise PayloadError(
                f"{after.parsed.label}: the upcaster from v{step} raised {raised}, or gave values that do not fit"
            )

        return hop
