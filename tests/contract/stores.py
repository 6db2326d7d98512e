"""Short ways to tell a job store things, for the suites that hold every store to the same promises."""

from __future__ import annotations

import uuid

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore
from pipeline.core.claims import Claim, ClaimRequest, Settlement, Verdict
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState

Store = MemoryJobStore | PostgresJobStore
FIRST = Claim(Verdict.CLAIMED, 1)


def beat(store: Store, *workers: str, lease: float = 600.0) -> None:
    for worker in workers:
        store.heartbeat(WorkerInfo(worker, "host-1", 4711, ("default",), lease))


def kill(store: Store, worker: str) -> None:
    """Let the worker's lease end now."""
    beat(store, worker, lease=0.0)


def new_id() -> str:
    return str(uuid.uuid4())


def request(job_id: str, *, hop: int = 0, offset: int = 0, attempt: int = 1) -> ClaimRequest:
    return ClaimRequest(
        job_id,
        "email.send",
        "acme",
        "default",
        attempt,
        hop,
        "jobs.default.normal",
        3,
        offset,
        1_700_000_000.25,
    )


def settlement(
    job_id: str, state: JobState = JobState.COMPLETED, *, token: int = 1, hop: int = 0, **other: object
) -> Settlement:
    values = {"attempt": 1, "started_at": 1_700_000_001.0, "finished_at": 1_700_000_001.5, **other}
    return Settlement(job_id=job_id, token=token, state=state, hop=hop, **values)  # type: ignore[arg-type]


def failed(job_id: str, *, token: int = 1, hop: int = 1) -> Settlement:
    failure = Failure("ValueError", "no such address", "File handlers.py, line 3")
    return settlement(
        job_id, JobState.RETRYING, token=token, hop=hop, due_at=1_700_000_060.0, failure=failure
    )


def died(job_id: str, *, token: int = 1, hop: int = 0) -> Settlement:
    failure = Failure("ValueError", "no such address")
    return settlement(job_id, JobState.DEAD, token=token, hop=hop, reason="max_attempts", failure=failure)


def claim_one(store: Store, worker: str, wanted: ClaimRequest) -> Claim:
    (claim,) = store.claim(worker, [wanted])
    return claim


def claimed(store: Store, worker: str = "a", **values: int) -> str:
    """The id of a new job that runs on `worker`."""
    job_id = new_id()
    assert claim_one(store, worker, request(job_id, **values)) == FIRST
    return job_id


def ended(store: Store, *settlements: Settlement) -> None:
    assert all(settled.accepted for settled in store.settle("a", settlements))


def state_of(store: Store, job_id: str) -> JobState:
    story = store.job(job_id)
    assert story is not None
    return story.state
