"""What a handler is told of its job."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.core.job import Job
from pipeline.errors import ConfigError
from pipeline.runtime.transactions import Transaction

__all__ = ["Context"]


class Context:
    """What a handler may know of its job beside the payload. Nothing in it changes.

    `fencing_token` rises with each claim of the job: a write that carries it, and refuses a lower one than it has seen,
    cannot be undone by a late worker. It is 0 for a job type that does not suppress duplicates.
    """

    # Made for each run: a frozen dataclass takes four times as long.
    __slots__ = ("_alive", "_begin", "fencing_token", "job")

    def __init__(
        self,
        job: Job,
        fencing_token: int,
        begin: Callable[[], Transaction] | None = None,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        self.job = job
        self.fencing_token = fencing_token
        self._begin = begin
        self._alive = alive

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def tenant(self) -> str:
        return self.job.tenant

    @property
    def attempt(self) -> int:
        """The first is 1."""
        return self.job.attempt

    @property
    def lost(self) -> bool:
        """Whether this worker has lost its lease: another may run the job by now, and nothing done here will count."""
        return self._alive is not None and not self._alive()

    def transaction(self) -> Transaction:
        """A Postgres transaction that takes effect exactly once.

            with ctx.transaction() as tx:           async with ctx.transaction() as tx:
                tx.execute(...)                         await tx.execute(...)

        What is written through `tx` (a `psycopg.Connection`, in a coroutine a `psycopg.AsyncConnection`) commits together
        with the completion of the job, at the end of the block, and only if this worker still holds the claim. Once per
        run, as the last thing a handler does. Raises `ClaimLost`, `StoreUnavailable`; let both pass, neither costs the job
        an attempt.
        """
        if self._begin is None:
            raise ConfigError(
                f"ctx.transaction() of job type {self.job.job_type!r} needs a worker with a Postgres store, "
                "and a job type that suppresses duplicates"
            )
        return self._begin()
