"""`pipeline worker`: one member of the consumer group."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import click

from pipeline.app import Pipeline
from pipeline.cli.common import Session, pass_session
from pipeline.cli.members import run_members
from pipeline.errors import ConfigError, SchemaError
from pipeline.runtime.interpreter import tuned_interpreter
from pipeline.runtime.lifecycle import drain_with_parent, stop_on_signals
from pipeline.runtime.supervisor import HOPELESS
from pipeline.runtime.worker import Worker
from pipeline.web.health import Check, HealthServer

__all__ = ["command"]

log = logging.getLogger("pipeline.worker")


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--queue", help="The queue to work on; needed when the settings have several.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    metavar="N",
    help="Run N of them, and replace one that dies. Ports count up from worker.http_port.",
)
@click.option("--member", is_flag=True, hidden=True, help="One of several, started by their supervisor.")
@pass_session
def command(session: Session, target: str, queue: str | None, *, processes: int, member: bool) -> None:
    """Run a worker with the handlers of MODULE:APP until SIGTERM or Ctrl-C (twice: at once).

    Start more of them, here or elsewhere, to share the work. Exit code 0 after a stop, 1 after a failure.
    """
    session.log_to_stderr()
    if processes > 1:
        sys.exit(run_members(session, target, queue, processes=processes))
    try:
        sys.exit(_run(session, target, queue, member=member))
    except (ConfigError, SchemaError) as error:
        if not member:
            raise
        log.critical("%s", error, extra={"action": "failed"})
        sys.exit(HOPELESS)


def _run(session: Session, target: str, queue: str | None, *, member: bool) -> int:
    app = session.app(target)
    if not list(app.registry.handlers()):
        raise ConfigError(
            f"application is {target!r}; it has no handlers. Name the module that registers them"
        )
    metrics = app.metrics()
    worker = app.worker(queue=queue, metrics=metrics, target=target)
    with (
        _health(app, worker, metrics.exposition),
        stop_on_signals(worker.stop),
        drain_with_parent(worker.drain) if member else nullcontext(),
        tuned_interpreter(),
    ):
        return worker.run()


@contextmanager
def _health(app: Pipeline, worker: Worker, exposition: Callable[[], bytes]) -> Iterator[None]:
    settings = app.settings.worker
    if settings.http_port is None:
        yield
        return
    server = HealthServer(
        settings.http_host,
        settings.http_port,
        metrics=exposition,
        ready=lambda: Check(worker.unready()),
        live=lambda: Check(worker.problems()),
    )
    server.start()
    log.info("metrics and health", extra={"action": "http", "port": server.port})
    try:
        yield
    finally:
        server.stop()
