"""Payloads in Avro: schemas from `schemas/<job type>/vN.avsc`, single-object encoding on the wire.

The only package that imports fastavro. What it must guard against, because fastavro does not:
trailing bytes, a truncated field that is skipped, integers out of range, times without a zone, decimals
whose conversion never ends, and schemas that describe themselves (the C stack overflows and takes the
process with it).
"""

from __future__ import annotations

from pipeline.adapters.avro.catalog import SchemaCatalog, SchemaVersion, packaged_schemas_dir
from pipeline.adapters.avro.codec import AvroCodec

__all__ = ["AvroCodec", "SchemaCatalog", "SchemaVersion", "packaged_schemas_dir"]
