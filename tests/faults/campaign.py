"""Faults drawn at random, one after the other, in one world; then everything is read once more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.case import Case, Loaded
from tests.faults.report import Result
from tests.faults.scale import Scale
from tests.faults.site import Site
from tests.harness.jobs import Task
from tests.harness.processes import WorkerProcess

__all__ = ["run_campaign"]

_FROZEN = 13  # seconds: longer than session and lease
_OUTAGE = 10
_RATE = 100


class Campaign:
    """Injects faults into a world with three workers, one of them behind both proxies. Each fault heals itself."""

    def __init__(self, case: Case, loaded: Loaded) -> None:
        self._case = case
        self._loaded = loaded
        self.killed: set[int] = set()
        self.apart: set[str] = set()
        self.drawn: Counter[str] = Counter()

    def draw(self) -> None:
        fault = self._case.rng.choice(_FAULTS)
        name = fault.__name__.strip("_").replace("_", " ")
        self.drawn[name] += 1
        print(f"  {time.strftime('%H:%M:%S')} {name}", flush=True)
        with self._loaded.load.fault():
            fault(self)
        self._case.figures.recoveries.append(self._loaded.load.wait_recovered())

    # --- workers

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._loaded.world.workers if worker.running]

    def _any(self) -> WorkerProcess:
        return self._case.rng.choice(self._running())

    def _replace(self) -> None:
        """As many workers as there were, the first of them behind the proxies."""
        site, world = self._case.site, self._loaded.world
        while len(self._running()) < 3:
            world.start_worker(
                kafka__bootstrap_servers=site.kafka_by_proxy, postgres__dsn=site.postgres_by_proxy
            )

    def kill_a_worker(self) -> None:
        victim = self._any()
        self.killed.add(victim.pid)
        victim.kill()
        self._replace()

    def stop_a_worker(self) -> None:
        assert self._any().stop() == 0
        self._replace()

    def freeze_a_worker(self) -> None:
        frozen = self._any()
        frozen.pause()
        self._loaded.load.pass_time(_FROZEN)
        frozen.resume()

    def a_job_kills_its_worker(self) -> None:
        world = self._loaded.world
        before = self._running()
        for worker in before:
            worker.may_end = True
        (job,) = world.publish(world.jobs.effect, [Task(name="deadly", dies=self._case.rng.choice(_WAYS))])
        self.apart.add(job.job_id)
        world.wait("a worker dies", lambda: len(self._running()) < len(before), timeout=90)
        for worker in before:
            worker.may_end = not worker.running
        self.killed |= {worker.pid for worker in before if not worker.running}
        self._replace()

    # --- servers

    def restart_kafka(self) -> None:
        self._case.site.kafka.stop()
        self._case.site.kafka.start()

    def kill_kafka(self) -> None:
        self._case.site.kafka.kill()
        self._case.site.kafka.start()

    def freeze_kafka(self) -> None:
        self._case.site.kafka.pause()
        self._loaded.load.pass_time(_OUTAGE)
        self._case.site.kafka.resume()

    def restart_postgres(self) -> None:
        self._case.site.postgres.stop()
        self._loaded.load.pass_time(_OUTAGE)
        self._case.site.postgres.start()

    def kill_postgres(self) -> None:
        self._case.site.postgres.kill()
        self._case.site.postgres.start()

    def freeze_postgres(self) -> None:
        self._case.site.postgres.pause()
        self._loaded.load.pass_time(_OUTAGE)
        self._case.site.postgres.resume()

    # --- connections

    def cut_from_kafka(self) -> None:
        with self._healed():
            self._case.site.kafka_proxy.cut()

    def cut_from_postgres(self) -> None:
        with self._healed():
            self._case.site.postgres_proxy.cut()

    def slow_link(self) -> None:
        with self._healed():
            self._case.site.kafka_proxy.slow(0.1)
            self._case.site.postgres_proxy.slow(0.02)

    def reset_connections(self) -> None:
        for _ in range(5):
            self._case.site.kafka_proxy.reset()
            self._case.site.postgres_proxy.reset()
            self._loaded.load.pass_time(0.5)

    @contextmanager
    def _healed(self) -> Iterator[None]:
        yield
        self._loaded.load.pass_time(_FROZEN)
        self._case.site.kafka_proxy.heal()
        self._case.site.postgres_proxy.heal()


_WAYS = ("exit", "crash", "eat")
_FAULTS: tuple[Callable[[Campaign], None], ...] = (
    Campaign.kill_a_worker,
    Campaign.stop_a_worker,
    Campaign.freeze_a_worker,
    Campaign.a_job_kills_its_worker,
    Campaign.restart_kafka,
    Campaign.kill_kafka,
    Campaign.freeze_kafka,
    Campaign.restart_postgres,
    Campaign.kill_postgres,
    Campaign.freeze_postgres,
    Campaign.cut_from_kafka,
    Campaign.cut_from_postgres,
    Campaign.slow_link,
    Campaign.reset_connections,
)


def run_campaign(
    result: Result, site: Site, scale: Scale, *, minutes: float, seed: int, folder: Path
) -> None:
    """Draw faults for so long, heal, drain, judge."""
    result.runs, result.seeds = result.runs + 1, [*result.seeds, seed]
    print(f"campaign: seed {seed}, {minutes:g} minutes", flush=True)
    until = time.monotonic() + minutes * 60
    with ExitStack() as stack:
        case = Case(site, replace(scale, jobs=0, rate=_RATE), seed=seed, folder=folder, stack=stack)
        stack.callback(site.heal)
        world = case.world(settings={"worker.process_memory_mb": 300, "worker.concurrency": 16})
        world.start_worker(kafka__bootstrap_servers=site.kafka_by_proxy, postgres__dsn=site.postgres_by_proxy)
        try:
            with case.loaded(world) as loaded:
                campaign = Campaign(case, loaded)
                while time.monotonic() < until:
                    campaign.draw()
            case.judge(loaded, killed=campaign.killed, apart=campaign.apart)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is run
            result.failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:400]}")
            print(f"  FAIL: {str(error)[:8000]}", flush=True)
        result.figures.merge(case.figures)
    result.remarks += [
        f"{sum(campaign.drawn.values())} faults in {minutes:g} minutes: "
        + ", ".join(f"{count} x {name}" for name, count in campaign.drawn.most_common())
        + "."
    ]
