"""The worker's side of the demo: `pipeline worker pipeline.demo.handlers:app`.

The e-mail handler writes its effect through `ctx.transaction()`: exactly once. The invoice handler writes a file named
after the job, so that doing it twice leaves what doing it once leaves: at least once, and harmless. Each start of a
handler is noted in a file outside of all that, which is the evidence that the demo's numbers are checked against.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from pipeline.demo.jobs import RenderInvoice, SendEmail, app, render_invoice, send_email
from pipeline.runtime.context import Context

__all__ = ["FAIL_ONCE", "FAIL_UNTIL_FIXED", "app"]

FAIL_ONCE = "[fails once]"
FAIL_UNTIL_FIXED = "[fails until the bug is fixed]"
WORK_SECONDS = 0.04


def evidence_dir() -> Path:
    """Where the demo keeps its evidence; elsewhere, a folder in the working directory."""
    return Path(os.environ.get("PIPELINE_DEMO_EVIDENCE", "demo-evidence"))


@app.handler(send_email)
def send(job: SendEmail, ctx: Context) -> None:
    _note_start(ctx)
    time.sleep(WORK_SECONDS)  # the conversation with a mail server
    _fail_as_told(job.subject, ctx)
    with ctx.transaction() as transaction:
        transaction.execute(
            "insert into demo_sent (job_id, recipient, token) values (%s, %s, %s)",
            (ctx.job_id, job.to, ctx.fencing_token),
        )


@app.handler(render_invoice)
async def render(job: RenderInvoice, ctx: Context) -> None:
    _note_start(ctx)
    await asyncio.sleep(WORK_SECONDS)  # the rendering service
    _fail_as_told(job.template, ctx)
    (evidence_dir() / "invoices" / ctx.job_id).write_text(job.customer, encoding="utf-8")


def _fail_as_told(text: str, ctx: Context) -> None:
    if text.startswith(FAIL_ONCE) and ctx.attempt == 1:
        raise ConnectionError("the other side hung up (as the demo told it to)")
    if text.startswith(FAIL_UNTIL_FIXED) and not (evidence_dir() / "bug-is-fixed").exists():
        raise ValueError("a bug in this handler (as the demo told it to)")


def _note_start(ctx: Context) -> None:
    line = f"{ctx.job_id} {ctx.attempt} {ctx.fencing_token} {os.getpid()}\n"
    # One write of a short line in append mode: lines of several processes do not mix, and survive a SIGKILL.
    with (evidence_dir() / "starts").open("a", encoding="utf-8") as starts:
        starts.write(line)
