"""Jobs that run in order: `pipeline worker tests.acceptance.ordered_app:app`.

Each writes the number of its entry into a table, in the transaction that completes it, so the table shows the order in which
the jobs of an account took effect.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from pipeline import Backoff, Context, Pipeline, Retry
from tests.harness.ledger import Acked, Ledger, note_run
from tests.harness.world import World

__all__ = ["BASE", "MAX_ATTEMPTS", "ORDERED", "TARGET", "Entry", "app", "entries_of", "prepare", "publish"]

TARGET = "tests.acceptance.ordered_app:app"
MAX_ATTEMPTS = 3
BASE = 0.4


class Entry(BaseModel):
    """The `number`th entry of an account. Its first `fails` attempts fail; each run takes `seconds`.

    With a `gate` each attempt waits first until the file `<gate>-<attempt>` exists. The last that fails asks for a `pause` of
    so many seconds, if that is given.
    """

    account: str
    number: int
    fails: int = 0
    seconds: float = 0.0
    gate: str = ""
    pause: float = 0.0


app = Pipeline()
ORDERED = app.job_type(
    "ledger.post",
    Entry,
    order="key",
    retry=Backoff(max_attempts=MAX_ATTEMPTS, base=BASE, multiplier=2, jitter=0.0),
    breaker=None,  # its jobs fail many in a row on purpose
)


class ToldToFail(Exception):
    """What an entry raises that is told to fail."""


@app.handler(ORDERED)
def post(entry: Entry, ctx: Context) -> None:
    folder = Path(os.environ["HARNESS_FOLDER"])
    with note_run(
        Ledger(folder / "executions"),
        job_id=ctx.job_id,
        job_type=ctx.job.job_type,
        name=f"{entry.account}/{entry.number}",
        attempt=ctx.attempt,
        token=ctx.fencing_token,
        pid=os.getpid(),
    ):
        time.sleep(entry.seconds)
        while entry.gate and not (folder / f"{entry.gate}-{ctx.attempt}").exists():
            time.sleep(0.02)
        if ctx.attempt == entry.fails and entry.pause:
            raise Retry(after=entry.pause)
        if ctx.attempt <= entry.fails:
            raise ToldToFail
        with ctx.transaction() as tx:
            tx.execute(
                f"insert into {_table()} (account, number) values (%s, %s)", (entry.account, entry.number)
            )


def _table() -> str:
    return os.environ["HARNESS_EFFECTS"] + "_in_order"


def prepare(world: World) -> None:
    """Make the schema of the job type and the table of its effects; let this process publish into that world."""
    from pipeline import load_settings

    fields = [
        {"name": "account", "type": "string"},
        {"name": "number", "type": "int"},
        {"name": "fails", "type": "int", "default": 0},
        {"name": "seconds", "type": "double", "default": 0.0},
        {"name": "gate", "type": "string", "default": ""},
        {"name": "pause", "type": "double", "default": 0.0},
    ]
    schema = {"type": "record", "name": "Entry", "namespace": "tests.acceptance", "fields": fields}
    (world.folder / "schemas" / ORDERED.name).mkdir(parents=True)
    (world.folder / "schemas" / ORDERED.name / "v1.avsc").write_text(json.dumps(schema))
    app.configure(load_settings(environ=world.environment()))
    world.execute(
        f'create table "{world.name}".effects_in_order (place bigserial, account text, number integer)'
    )


def publish(world: World, entries: Sequence[Entry], *, tenants: int = 6) -> list[Acked]:
    """Publish in this order; an account belongs to one tenant."""
    with app.publisher(source="driver") as publisher:
        futures = [
            publisher.publish_async(
                ORDERED,
                entry,
                tenant=f"tenant-{hash_of(entry.account) % tenants}",
                ordering_key=entry.account,
            )
            for entry in entries
        ]
        acked = [Acked(*future.result(30)) for future in futures]
    world.note_acked(acked)
    return acked


def hash_of(account: str) -> int:
    return sum(account.encode())


def entries_of(world: World) -> dict[str, list[int]]:
    """By account, the numbers of the entries in the order of their effects."""
    rows = world.execute(f'select account, number from "{world.name}".effects_in_order order by place')
    found: dict[str, list[int]] = {}
    for account, number in rows:
        found.setdefault(account, []).append(number)
    return found
