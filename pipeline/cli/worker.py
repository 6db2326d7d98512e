"""`pipeline worker`: one member of the consumer group."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from pipeline.app import Pipeline
from pipeline.cli.common import Session, pass_session
from pipeline.errors import ConfigError
from pipeline.runtime.lifecycle import stop_on_signals
from pipeline.runtime.worker import Worker
from pipeline.web.health import Check, HealthServer

__all__ = ["command"]

log = logging.getLogger("pipeline.worker")


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--queue", help="The queue to work on; needed when the settings have several.")
@pass_session
def command(session: Session, target: str, queue: str | None) -> None:
    """Run a worker with the handlers of MODULE:APP until SIGTERM or Ctrl-C (twice: at once).

    Start more of them, here or elsewhere, to share the work. Exit code 0 after a stop, 1 after a failure.
    """
    session.log_to_stderr()
    app = session.app(target)
    if not list(app.registry.handlers()):
        raise ConfigError(
            f"application is {target!r}; it has no handlers. Name the module that registers them"
        )
    metrics = app.metrics()
    worker = app.worker(queue=queue, metrics=metrics, target=target)
    with _health(app, worker, metrics.exposition), stop_on_signals(worker.stop):
        code = worker.run()
    sys.exit(code)


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
