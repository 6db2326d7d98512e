"""A publisher that goes on whatever happens, and remembers what it was told."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline import JobType, PublishFailed
from tests.harness.background import Background
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.world import TENANTS, World

__all__ = ["PublishStream"]


class PublishStream(Background):
    """Publishes one job after the other between `__enter__` and `__exit__`, about `rate` a second.

    Each has an idempotency key. One that was not acknowledged is published again, under the same key, until it was: so
    at the end every job of the stream is acknowledged. `failed` has how long each refused call took.
    """

    def __init__(
        self, world: World, job_type: JobType[Task], make: Callable[[int], Task], *, rate: float = 50
    ) -> None:
        self._world = world
        self._job_type = job_type
        self._make = make
        self._pause = 1 / rate
        super().__init__("publish-stream")
        self.acked: list[Acked] = []
        self.failed: list[float] = []

    def _loop(self) -> None:
        number = 0
        while not self._stopped.wait(self._pause):
            task = self._make(number)
            while not self._published(task, TENANTS[number % len(TENANTS)]):
                pass
            number += 1

    def _published(self, task: Task, tenant: str) -> bool:
        asked = time.monotonic()
        try:
            published = self._world.publisher.publish(
                self._job_type, task, tenant=tenant, idempotency_key=task.name
            )
        except PublishFailed:
            self.failed.append(time.monotonic() - asked)
            return False
        acked = Acked(*published)
        self._world.note_acked([acked])
        self.acked.append(acked)
        return True
