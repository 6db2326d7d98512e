"""The main job from end to end on real servers, with a worker killed halfway, and every number checked at the end.

Publishes jobs of two types for five tenants, runs two worker processes, kills one with SIGKILL, lets failures go through
the retry topics to the dead letters, "fixes the bug", replays the dead letters, and compares what happened with what was
promised. What the user would type is run as the user would type it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.app import Pipeline
from pipeline.config import load_settings
from pipeline.core.state import JobState
from pipeline.demo.checks import Evidence, check_all
from pipeline.demo.jobs import app as demo_app
from pipeline.demo.view import progress, verdict
from pipeline.demo.work import Plan, make_requests
from pipeline.embedded import start_servers
from pipeline.errors import PipelineError
from pipeline.runtime.publisher import BulkResult

__all__ = ["run_demo"]

DEADLINE = 120.0
SETTINGS = {
    "PIPELINE_NAMESPACE": "demo",
    "PIPELINE_POSTGRES__SCHEMA_NAME": "pipeline",
    "PIPELINE_RETRY__TIERS": "[1, 5]",
    "PIPELINE_WORKER__CONCURRENCY": "4",
    "PIPELINE_WORKER__ASYNC_CONCURRENCY": "4",
    "PIPELINE_WORKER__HTTP_PORT": "off",
}


class DemoFailed(PipelineError):
    """The demo could not be carried out."""


def run_demo(console: Console, plan: Plan) -> bool:
    """Run it; True when every number is as promised. Leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="pipeline-demo-") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        console.print("[bold]1. real servers[/]: Kafka and Postgres from packages, in a temporary folder")
        servers = stack.enter_context(
            start_servers(home / "servers", log=lambda line: console.print(f"   {line}"))
        )
        os.environ.update(SETTINGS)
        os.environ["PIPELINE_KAFKA__BOOTSTRAP_SERVERS"] = servers.bootstrap_servers
        os.environ["PIPELINE_POSTGRES__DSN"] = servers.postgres_dsn
        os.environ["PIPELINE_DEMO_EVIDENCE"] = str(home)
        (home / "invoices").mkdir()
        demo_app.configure(load_settings())
        return _Demo(console, plan, demo_app, home, stack).run()


class _Demo:
    def __init__(
        self, console: Console, plan: Plan, app: Pipeline, home: Path, stack: contextlib.ExitStack
    ) -> None:
        self._console = console
        self._plan = plan
        self._app = app
        self._home = home
        self._stack = stack
        self._store = stack.enter_context(contextlib.closing(app.store()))
        self._admin = KafkaAdmin(app.admin_config())
        self._workers: list[subprocess.Popen[bytes]] = []
        self._killed = ""

    def run(self) -> bool:
        say, plan = self._console.print, self._plan
        say("[bold]2. topics and tables[/]")
        self._command("topics", "apply")
        self._command("db", "migrate")
        self._make_effects_table()
        say(f"[bold]3. publish[/]: {plan.records} records for {plan.jobs} jobs, {plan.twice} of them twice")
        published = self._publish()
        say("[bold]4. two workers[/]; one of them is killed with SIGKILL halfway")
        self._workers = [self._start_worker(number) for number in (1, 2)]
        self._watch("half of the jobs", lambda: self._finished() >= plan.jobs // 2)
        self._kill_one()
        self._watch("every job completed or dead", lambda: self._finished() >= plan.jobs)
        dead = self._counts().get(JobState.DEAD, 0)
        say(f"[bold]5. the bug is fixed[/]: {dead} dead letters are replayed into the main topic")
        (self._home / "bug-is-fixed").touch()
        self._command("dlq", "replay", "--all")
        self._command("dlq", "replay", "--all", "--execute")
        self._command("dlq", "replay", "--all", "--execute")  # twice: each letter runs once in effect
        self._watch("the replayed jobs", lambda: self._counts().get(JobState.COMPLETED, 0) >= plan.jobs)
        self._watch("nothing left to read", lambda: self._lag() == 0)
        codes = self._stop_workers()
        say("[bold]6. what was promised, and what happened[/]")
        checks = check_all(self._evidence(published, dead, codes))
        say(verdict(checks))
        return all(check.holds for check in checks)

    # --- steps

    def _command(self, *arguments: str) -> None:
        """Run a command as a user does, and show what it prints."""
        self._console.print(f"   [dim]$ pipeline {' '.join(arguments)}[/]")
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "pipeline", *arguments], capture_output=True, text=True, check=False
        )
        for line in done.stdout.splitlines():
            self._console.print(f"   {line}", markup=False, highlight=False)
        if done.returncode != 0:
            raise DemoFailed(f"pipeline {' '.join(arguments)} failed: {done.stderr.strip()}")

    def _make_effects_table(self) -> None:
        with self._app.connection() as connection:
            connection.execute(
                "create table demo_sent (job_id uuid primary key, recipient text not null, token bigint not null)"
            )

    def _publish(self) -> BulkResult:
        requests = make_requests(self._plan, random.Random(2026))  # noqa: S311 - the same demo each time
        started = time.monotonic()
        with self._app.publisher(source="demo") as publisher:
            result = publisher.publish_many(requests)
        self._console.print(f"   acknowledged in {time.monotonic() - started:.2f} s")
        return result

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._home / f"worker-{number}.log").open("wb"))
        command = [sys.executable, "-m", "pipeline", "worker", "pipeline.demo.handlers:app"]
        worker = subprocess.Popen(command, stderr=log, stdout=log)  # noqa: S603 - our own command
        self._stack.callback(_end, worker)
        return worker

    def _kill_one(self) -> None:
        victim = self._workers[0]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self._killed = str(victim.pid)
        self._console.print(f"   worker {victim.pid} was killed with SIGKILL")

    def _stop_workers(self) -> list[int]:
        left = [worker for worker in self._workers if worker.poll() is None]
        for worker in left:
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(60) for worker in left]

    # --- looking

    def _watch(self, what: str, ready: Callable[[], bool]) -> None:
        """Show live progress until `ready`."""
        deadline = time.monotonic() + DEADLINE
        with Live(console=self._console, transient=True, refresh_per_second=8) as live:
            while not ready():
                live.update(progress(self._counts(), self._plan.jobs, workers=self._alive(), lag=self._lag()))
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"waited {DEADLINE:g} s for: {what}. Now: {self._counts()}\n{self._worker_logs()}"
                    )
                if not self._alive():
                    raise DemoFailed(f"no worker is left\n{self._worker_logs()}")
                time.sleep(0.1)
        self._console.print(progress(self._counts(), self._plan.jobs, workers=self._alive(), lag=self._lag()))

    def _counts(self) -> dict[JobState, int]:
        return self._store.counts()

    def _finished(self) -> int:
        counts = self._counts()
        return counts.get(JobState.COMPLETED, 0) + counts.get(JobState.DEAD, 0)

    def _alive(self) -> int:
        return sum(worker.poll() is None for worker in self._workers)

    def _topics(self) -> list[str]:
        names, tiers = self._app.names, self._app.settings.retry.tiers
        return [names.main("default"), *(names.retry("default", tier) for tier in tiers)]

    def _lag(self) -> int:
        group = f"{self._app.settings.namespace}.default"
        positions = self._admin.group_lag(group, self._topics()).values()
        return sum(position.end - (position.committed or 0) for position in positions)

    def _worker_logs(self) -> str:
        tails = [path.read_text(errors="replace")[-2000:] for path in sorted(self._home.glob("worker-*.log"))]
        return "\n".join(tails)

    def _evidence(self, published: BulkResult, dead: int, codes: list[int]) -> Evidence:
        names = self._app.names
        with self._app.connection() as connection:
            sent = [str(row[0]) for row in connection.execute("select job_id from demo_sent").fetchall()]
        return Evidence(
            plan=self._plan,
            acknowledged=published.job_ids,
            refused=len(published.refused),
            counts=self._counts(),
            dead_before_replay=dead,
            sent=sent,
            invoices=[path.name for path in (self._home / "invoices").iterdir()],
            starts=[line.split() for line in (self._home / "starts").read_text().splitlines()],
            killed=self._killed,
            lag=self._lag(),
            letters=sum(self._admin.end_offsets([names.dlq("default")]).values()),
            exit_codes=codes,
        )


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.kill()
        worker.wait()
