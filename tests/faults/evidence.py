"""The checks over one world after its fault: first everything is counted, then judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.core.state import JobState
from tests.faults.figures import Figures
from tests.harness.checks import (
    assert_clean_end,
    find_disorder,
    find_doubled,
    find_fallen,
    find_false,
    find_lost,
    find_passed,
    find_untold,
)
from tests.harness.jobs import Task
from tests.harness.ledger import Execution
from tests.harness.sampler import Sample
from tests.harness.world import World

__all__ = ["Evidence"]


@dataclass
class Evidence:
    """What is known from outside about one world.

    `told` are the tasks of jobs that are expected to run as they were told, neither more nor fewer attempts; `apart` are jobs
    whose runs tell nothing of when they ended; `killed` are processes that may have ended runs without a word.
    """

    world: World
    samples: Sequence[Sample]
    told: Mapping[str, Task] = field(default_factory=dict)
    killed: Collection[int] = ()
    apart: Collection[str] = ()

    def count(self, figures: Figures) -> None:
        """All that can be counted."""
        doubled, stale = find_doubled(self.world)
        runs = self.world.executions()
        figures.jobs += len({job.job_id for job in self.world.acked()})
        figures.lost += len(find_lost(self.world))
        figures.doubled += len(doubled.keys() | stale.keys())
        figures.fallen += len(find_fallen(self.samples))
        figures.redelivered += len(runs) - len({(run.job_id, run.attempt) for run in runs})

    def judge(self) -> None:
        """Raise AssertionError with the first promise that was broken."""
        doubled, stale = find_doubled(self.world)
        log = self.world.records(self.world.names.main("default"))
        problems: dict[str, Collection[object]] = {
            "lost": find_lost(self.world),
            "with another number of effects than one": doubled,
            "effects of runs that did not complete the job": stale,
            "offsets that fell": find_fallen(self.samples),
            "offsets that passed open jobs": find_passed(self.world, self.samples, apart=self.apart),
            "out of order": find_disorder(self.world, log),
            "acknowledged and not where they were said to be": find_false(self.world, log),
            "completed by another than the last holder": self._wrong_holders(),
            "attempts other than told": self._wrong_attempts(),
            "retries before their time": self._early(),
            "ended without an event that tells it": find_untold(self.world),
        }
        for what, found in problems.items():
            assert not found, f"{len(found)} {what}: {_some(found)}"
        assert_clean_end(self.world)

    def _runs(self) -> dict[str, list[Execution]]:
        runs: dict[str, list[Execution]] = defaultdict(list)
        for run in self.world.executions():
            runs[run.job_id].append(run)
        return runs

    def _wrong_holders(self) -> dict[str, str]:
        """Completed jobs whose completing run is not the last claim's, or ended in an error.

        One that was not told whether its transaction was committed has ended in one, too, and that is right.
        """
        wrong = {}
        rows = self.world.execute(
            f"select job_id::text, token from \"{self.world.name}\".jobs where state = 'completed'"
        )
        runs = self._runs()
        for job_id, token in rows:
            tokens = {run.token: run for run in runs.get(job_id, [])}
            run = tokens.get(token)
            if (
                run is None
                or run.error not in ("", "StoreUnavailable")
                or token != max(tokens)
                or not self._ended(run)
            ):
                wrong[job_id] = f"row has token {token}, runs are {runs.get(job_id)}"
        return wrong

    def _ended(self, run: Execution) -> bool:
        return bool(run.ended) or run.pid in self.killed

    def _wrong_attempts(self) -> dict[str, list[int]]:
        most = self.world.policy.max_attempts
        states = self.world.states()
        wrong = {}
        runs = self._runs()
        for job_id, task in self.told.items():
            attempts = [run.attempt for run in runs.get(job_id, [])]
            last = most if task.fails < 0 else min(task.fails + 1, most)
            state = JobState.DEAD if task.fails < 0 or task.fails >= most else JobState.COMPLETED
            if sorted(set(attempts)) != list(range(1, last + 1)) or states.get(job_id) is not state:
                wrong[job_id] = attempts
        return wrong

    def _early(self) -> list[str]:
        """Attempts that began sooner after the end of the one before than the policy says."""
        early = []
        policy = self.world.policy
        for job_id, runs in self._runs().items():
            if job_id not in self.told:
                continue
            ends: dict[int, float] = {}
            for run in runs:
                before = ends.get(run.attempt - 1)
                delay = policy.base * policy.multiplier ** (run.attempt - 2)
                if before is not None and run.started < before + delay:
                    early.append(f"{job_id}: {run}")
                if run.error and run.ended:
                    ends[run.attempt] = min(run.ended, ends.get(run.attempt, run.ended))
        return early


def _some(found: Collection[object]) -> str:
    items = found.items() if isinstance(found, Mapping) else found
    return "; ".join(str(item) for item in list(items)[:5])
