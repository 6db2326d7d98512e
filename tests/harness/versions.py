"""A job type whose payload has three versions, so that publisher and worker may differ.

The worker's side: `pipeline worker tests.harness.versions:app`, where HARNESS_VERSION says which version it was built with.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from pipeline import Backoff, Context, JobType, Pipeline
from tests.harness.ledger import Ledger

__all__ = ["GREET", "Greetings", "app", "declare", "greetings_in", "write_versions"]

GREET = "person.greet"


class Greet1(BaseModel):
    name: str


class Greet2(BaseModel):
    name: str
    greeting: str = "hello"


class Greet3(BaseModel):
    name: str
    greeting: str = "hello"
    tone: str = "plain"


_MODELS: dict[int, type[BaseModel]] = {1: Greet1, 2: Greet2, 3: Greet3}
_FIELDS: tuple[dict[str, Any], ...] = (
    {"name": "name", "type": "string"},
    {"name": "greeting", "type": "string", "default": "hello"},
    {"name": "tone", "type": "string", "default": "plain"},
)


def write_versions(folder: Path, newest: int, *, namespace: str) -> Path:
    """The schemas that a build of that version has. Written once: a worker may be reading them."""
    if folder.exists():
        return folder
    (folder / GREET).mkdir(parents=True)
    for number in range(1, newest + 1):
        schema = {"type": "record", "name": "Greet", "namespace": namespace, "fields": _FIELDS[:number]}
        (folder / GREET / f"v{number}.avsc").write_text(json.dumps(schema))
    return folder


class Greetings(NamedTuple):
    """An application built with one version."""

    app: Pipeline
    greet: JobType[Any]
    model: type[BaseModel]


def declare(version: int) -> Greetings:
    app = Pipeline()
    model = _MODELS[version]
    retry = Backoff(max_attempts=2, base=1.0, multiplier=1.0, jitter=0.0)
    return Greetings(app, app.job_type(GREET, model, retry=retry), model)


def greetings_in(folder: Path) -> list[dict[str, Any]]:
    """What the handlers were given, in the order of their runs."""
    return Ledger(folder / "greeted").entries()


_built = declare(int(os.environ.get("HARNESS_VERSION", "2")))
app = _built.app


@app.handler(_built.greet)
def greet(job: BaseModel, ctx: Context) -> None:
    entry = {"job_id": ctx.job_id, "attempt": ctx.attempt, "at": time.time(), "payload": job.model_dump()}
    Ledger(Path(os.environ["HARNESS_FOLDER"]) / "greeted").append(entry)
