"""The job that the benchmarks publish: ten fields, about 300 bytes, spread over 50 tenants."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from pipeline import JobRequest, Pipeline
from pipeline.demo.jobs import Currency, RenderInvoice

__all__ = ["TENANTS", "app", "plain_app", "plain_render", "render", "requests"]

TENANTS = 50
app = Pipeline()
render = app.job_type("invoice.render", RenderInvoice)
plain_app = Pipeline()  # the same job without duplicate suppression
plain_render = plain_app.job_type("invoice.render", RenderInvoice, deduplicate=False)


def requests(count: int, *, first: int = 0) -> Iterator[JobRequest]:
    """`count` jobs, each of its own id, tenants in turn."""
    issued = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(first, first + count):
        payload = RenderInvoice.model_construct(
            invoice_id=uuid.UUID(int=number),
            issued_at=issued,
            currency=Currency.EUR,
            total_cents=129900 + number % 1000,
            customer=f"Customer {number}",
            template="the quick brown fox jumps over the lazy dog, twice",
            copies=1,
            due_in_days=14,
            lines=["1 x widget, blue", "2 x gadget, green", "delivery"],
            labels={"origin": "bench", "region": "north"},
            purchase_order=None,
            footer="thank you for your order " * 4,
        )
        yield JobRequest(render, payload, f"tenant-{number % TENANTS:02d}")
