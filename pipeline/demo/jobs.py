"""Two example job types, shared by services and workers. Names and addresses are invented."""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

from pydantic import AwareDatetime, BaseModel

from pipeline.app import Pipeline
from pipeline.core.backoff import Backoff

__all__ = ["Currency", "RenderInvoice", "SendEmail", "app", "render_invoice", "send_email"]

app = Pipeline()


class SendEmail(BaseModel):
    to: str
    subject: str
    body: str
    cc: list[str] = []
    reply_to: str | None = None


class Currency(StrEnum):
    OTHER = "OTHER"
    EUR = "EUR"
    GBP = "GBP"
    USD = "USD"


class RenderInvoice(BaseModel):
    invoice_id: UUID
    issued_at: AwareDatetime
    currency: Currency
    total_cents: int
    customer: str
    template: str
    copies: int
    due_in_days: int
    lines: list[str]
    labels: dict[str, str]
    purchase_order: str | None = None
    footer: str = ""


_RETRY = Backoff(max_attempts=3, base=0.5, multiplier=2, cap=5)

# Without breakers: the demo lets so many jobs fail that they would open, and keep the sound ones waiting.
send_email = app.job_type("email.send", SendEmail, retry=_RETRY, timeout=30, breaker=None)
render_invoice = app.job_type("invoice.render", RenderInvoice, retry=_RETRY, timeout=30, breaker=None)
