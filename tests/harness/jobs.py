"""Job types for whole-system tests: the payload says what the handler does."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from pipeline import Backoff, JobType, Pipeline

__all__ = ["ASYNC", "EFFECT", "ORDERED", "PLAIN", "Jobs", "Policy", "Task", "declare", "write_schemas"]

EFFECT = "work.effect"  # a plain function; writes a row through ctx.transaction()
PLAIN = "work.plain"  # a plain function that leaves nothing but its entry in the ledger
ASYNC = "work.async"  # the same as a coroutine
ORDERED = "work.ordered"  # as EFFECT, one at a time of each tenant, in the order published


class Task(BaseModel):
    """What a run does, in this order: take `seconds`, block, wait for `gate`, fail, die, have its effect.

    `gate` names a file: the run goes on when it, or `<gate>-<token>`, exists. The first `fails` attempts fail; with -1
    all do until a file named `fixed` exists; the error is an `odd` one, which cannot be put into words, if that is given, or
    a `huge` one. `dies` says where the first run kills its process: `before` the effect, `inside` its transaction, or `after`
    that has committed; or how every run does: by `exit`, by a `crash`, or killed by the kernel as it would `eat` all memory.
    For so many seconds the first run `blocks` all Python code of its process.
    """

    name: str
    seconds: float = 0.0
    gate: str = ""
    fails: int = 0
    dies: str = ""
    error: str = ""
    blocks: float = 0.0


_SCHEMA = {
    "type": "record",
    "name": "Task",
    "namespace": "tests.harness",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "seconds", "type": "double", "default": 0.0},
        {"name": "gate", "type": "string", "default": ""},
        {"name": "fails", "type": "int", "default": 0},
        {"name": "dies", "type": "string", "default": ""},
        {"name": "error", "type": "string", "default": ""},
        {"name": "blocks", "type": "double", "default": 0.0},
    ],
}


_TYPES: dict[str, Literal["unordered", "key"]] = {
    EFFECT: "unordered",
    PLAIN: "unordered",
    ASYNC: "unordered",
    ORDERED: "key",
}


def write_schemas(folder: Path) -> None:
    for name in _TYPES:
        (folder / name).mkdir(parents=True)
        (folder / name / "v1.avsc").write_text(json.dumps(_SCHEMA))


@dataclass(frozen=True)
class Policy:
    """Retries and time limit of all job types. No jitter: delays are compared with the clock."""

    max_attempts: int = 3
    base: float = 1.0
    multiplier: float = 2.0
    timeout: float | None = None

    def to_environment(self) -> dict[str, str]:
        return {"HARNESS_POLICY": json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Policy:
        return cls(**json.loads(os.environ["HARNESS_POLICY"]))


class Jobs(NamedTuple):
    """An application and its job types."""

    app: Pipeline
    effect: JobType[Task]
    plain: JobType[Task]
    asynchronous: JobType[Task]
    ordered: JobType[Task]


def declare(policy: Policy) -> Jobs:
    """The same job types for the driver and for the workers."""
    app = Pipeline()
    retry = Backoff(
        max_attempts=policy.max_attempts, base=policy.base, multiplier=policy.multiplier, jitter=0.0
    )
    types = [
        # Tasks fail because they are told to, many in a row: a breaker would hold the others back.
        app.job_type(name, Task, retry=retry, timeout=policy.timeout, breaker=None, order=order)
        for name, order in _TYPES.items()
    ]
    return Jobs(app, *types)
