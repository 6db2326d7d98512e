"""What the demo publishes. All names are invented."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.demo.handlers import FAIL_ONCE, FAIL_UNTIL_FIXED
from pipeline.demo.jobs import Currency, RenderInvoice, SendEmail, render_invoice, send_email
from pipeline.runtime.publisher import JobRequest

__all__ = ["TENANTS", "Plan", "make_requests"]

TENANTS = ("acme", "borealis", "cumulus", "dynamo", "echo")


class Plan(NamedTuple):
    """How many jobs: of each of the two types, published twice, failing once, failing until the bug is fixed."""

    each: int = 1000
    twice: int = 100
    once: int = 60
    always: int = 20

    @property
    def jobs(self) -> int:
        return 2 * self.each

    @property
    def records(self) -> int:
        return self.jobs + self.twice


def make_requests(plan: Plan, rng: random.Random) -> list[JobRequest]:
    """The requests in a random order; `plan.twice` of them come twice, under the same idempotency key."""
    requests = [*_emails(plan), *_invoices(plan)]
    requests += rng.sample(requests, plan.twice)
    rng.shuffle(requests)
    return requests


def _marks(plan: Plan) -> Iterator[str]:
    """Half of the failing jobs are e-mails, half are invoices."""
    for number in range(plan.each):
        if number < plan.once // 2:
            yield FAIL_ONCE
        elif number < (plan.once + plan.always) // 2:
            yield FAIL_UNTIL_FIXED
        else:
            yield ""


def _emails(plan: Plan) -> Iterator[JobRequest]:
    for number, mark in enumerate(_marks(plan)):
        payload = SendEmail(
            to=f"customer-{number}@example.test",
            subject=f"{mark} Your order {number}".strip(),
            body="Thank you for your order. It is on its way.",
        )
        yield JobRequest(send_email, payload, TENANTS[number % len(TENANTS)], f"order-{number}")


def _invoices(plan: Plan) -> Iterator[JobRequest]:
    for number, mark in enumerate(_marks(plan)):
        payload = RenderInvoice(
            invoice_id=uuid.uuid5(uuid.NAMESPACE_OID, f"invoice {number}"),
            issued_at=datetime(2026, 1, 1, tzinfo=UTC),
            currency=Currency.EUR,
            total_cents=1999 + number,
            customer=f"Customer {number}",
            template=f"{mark} plain".strip(),
            copies=1,
            due_in_days=14,
            lines=["1 x widget"],
            labels={"origin": "demo"},
        )
        yield JobRequest(render_invoice, payload, TENANTS[number % len(TENANTS)], f"invoice-{number}")
