"""An application whose only job fails until its "bug" is fixed: while the file named by DESK_BUG is there."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.app import Pipeline
from pipeline.core.backoff import Backoff
from pipeline.demo.jobs import SendEmail

__all__ = ["app"]

app = Pipeline()
send_email = app.job_type(
    "email.send",
    SendEmail,
    retry=Backoff(max_attempts=int(os.environ.get("DESK_ATTEMPTS", "2")), base=0.1, jitter=0.0),
    breaker=None,
)


class MailboxFull(Exception):
    """What the bug raises."""


@app.handler(send_email)
def send(job: SendEmail) -> None:
    if Path(os.environ["DESK_BUG"]).exists():
        raise MailboxFull(f"no room for {job.to}\nnor for \x1b[31manyone\x1b[0m else")
