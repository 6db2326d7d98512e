"""Codec speed: the ten-field job, one thread, CPU time; bare fastavro on the same values beside it.

Run alone: `python -m bench.codec`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from uuid import UUID

from fastavro import schemaless_reader, schemaless_writer

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.adapters.avro.framing import HEADER_SIZE
from pipeline.demo.jobs import Currency, RenderInvoice

JOB_TYPE = "invoice.render"
ROUNDS = 5


def run(*, operations: int = 10_000) -> dict[str, float]:
    """Operations per second of CPU time, best of several rounds, the ratios to bare fastavro, the payload's size in bytes."""
    catalog = SchemaCatalog(Path(__file__).parents[1] / "schemas")
    codec = AvroCodec(catalog)
    codec.register(JOB_TYPE, RenderInvoice)
    job = _job()
    data = codec.encode(JOB_TYPE, job)
    first, newest = (version.schema for version in catalog.versions(JOB_TYPE)[:2])
    bare = data[HEADER_SIZE:]
    oldest = BytesIO()
    schemaless_writer(oldest, first, job.__dict__)
    old = b"\xc3\x01" + catalog.versions(JOB_TYPE)[0].fingerprint + oldest.getvalue()
    values = dict(job.__dict__)

    def rate(operation: Callable[[], object]) -> float:
        return max(_round(operation, operations) for _ in range(ROUNDS))

    figures = {
        "codec.payload_bytes": float(len(data)),
        "codec.encode_per_s": rate(lambda: codec.encode(JOB_TYPE, job)),
        "codec.decode_per_s": rate(lambda: codec.decode(JOB_TYPE, data)),
        "codec.decode_older_per_s": rate(lambda: codec.decode(JOB_TYPE, old)),
        "codec.bare_encode_per_s": rate(lambda: schemaless_writer(BytesIO(), newest, values)),
        "codec.bare_decode_per_s": rate(lambda: schemaless_reader(BytesIO(bare), newest, None)),
    }
    figures["codec.encode_ratio"] = figures["codec.encode_per_s"] / figures["codec.bare_encode_per_s"]
    figures["codec.decode_ratio"] = figures["codec.decode_per_s"] / figures["codec.bare_decode_per_s"]
    return figures


def _round(operation: Callable[[], object], operations: int) -> float:
    started = time.thread_time()
    for _ in range(operations):
        operation()
    return operations / (time.thread_time() - started)


def _job() -> RenderInvoice:
    return RenderInvoice(
        invoice_id=UUID("0198a1c2-7d5e-7cc3-98c4-dc0c0c07398f"),
        issued_at=datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        currency=Currency.EUR,
        total_cents=129_900,
        customer="Fennel & Rook Ltd, 4 Harbour Lane",
        template="standard",
        copies=2,
        due_in_days=30,
        lines=["3 x garden chair, oak", "1 x round table, oak", "delivery and assembly"],
        labels={"region": "north", "batch": "2026-01", "source": "webshop"},
        purchase_order="PO-20417",
        footer="Thank you for your order.",
    )


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:28} {value:12,.2f}" if value < 100 else f"{name:28} {value:12,.0f}")
