"""A fetched record on its way through a worker, and the end of its run."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel

from pipeline.core.claims import ClaimRequest
from pipeline.core.job import Job, Record
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Outcome
from pipeline.core.quick import new_tuple
from pipeline.runtime.handlers import Handler

__all__ = ["Delivery", "OrderKey", "Run"]

OrderKey = tuple[str, str, str]  # job type, tenant, ordering key


class Delivery:
    """One record that this worker received. `epoch` is the assignment that it came in; `token` is 0 until claimed.

    `payload` and `handler` are set when it is about to run; `committed` once the handler's own transaction has completed it.
    `doubtful` says that a claim was asked for it whose answer never came: this worker may hold the job without knowing.
    `suspect` says that the job may kill the process it runs in, and `crashes` how often it was seen to.
    `key` is set for a job that runs in order: one job of a key at a time. `aside` says that it waits behind another one of
    its key, in place for its next attempt, or for one of the places that its type is given: `placed` says that it has one.
    `let_go` and `put_off` are said of a job that was held back by a breaker:
    it may run now, or is to come back later. `size` is about how many bytes it takes; `lane` and `is_retry` (it came from a retry
    topic) are set by the buffer that receives it. `failing_since` is when the first attempt began that failed, 0 before.
    """

    __slots__ = (
        "aside",
        "committed",
        "crashes",
        "doubtful",
        "due_at",
        "epoch",
        "failing_since",
        "handler",
        "is_retry",
        "job",
        "key",
        "lane",
        "let_go",
        "partition",
        "payload",
        "placed",
        "problem",
        "put_off",
        "record",
        "size",
        "suspect",
        "token",
    )

    def __init__(self, record: Record, partition: Partition, job: Job, problem: str) -> None:
        self.record = record
        self.partition = partition
        self.job = job
        self.problem = problem
        self.size = record.size
        self.lane = ""
        self.is_retry = False
        self.epoch = 0
        self.due_at = job.not_before
        self.token = 0
        self.payload: BaseModel | None = None
        self.handler: Handler | None = None
        self.committed = False
        self.doubtful = False
        self.suspect = False
        self.crashes = 0
        self.key: OrderKey | None = None
        self.aside = False
        self.placed = False
        self.failing_since = 0.0
        self.let_go = self.put_off = False

    def next_attempt(self, attempt: int, due_at: float) -> Delivery:
        """The same record for another run. A new object: a handler that overran its time limit may still use this one."""
        following = Delivery(self.record, self.partition, self.job._replace(attempt=attempt), self.problem)
        following.epoch = self.epoch
        following.lane, following.is_retry = self.lane, self.is_retry
        following.due_at = due_at
        following.suspect = self.suspect
        following.key = self.key
        following.failing_since = self.failing_since
        return following

    def claim_request(self) -> ClaimRequest:
        job, record = self.job, self.record
        return new_tuple(
            ClaimRequest,
            (
                job.job_id,
                job.job_type,
                job.tenant,
                job.queue,
                job.attempt,
                job.hop,
                record.topic,
                record.partition,
                record.offset,
                job.enqueued_at,
            ),
        )

    def __repr__(self) -> str:
        return (
            f"Delivery({self.job.job_id} {self.partition.topic}/{self.partition.number}@{self.record.offset})"
        )


class Run(NamedTuple):
    """What a handler run gave. Times are epoch seconds."""

    delivery: Delivery
    outcome: Outcome
    started_at: float
    finished_at: float
