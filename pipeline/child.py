"""A child process of a worker: `python -m pipeline.child PIPE`. It ends when the pipe does.

It imports the application as its worker did, by its target, and works on its worker's settings.
"""

from __future__ import annotations

import importlib
import sys
from multiprocessing.connection import Connection
from typing import Any

from pipeline.app import Pipeline
from pipeline.config.transfer import unpack_settings
from pipeline.core.outcome import describe_failure
from pipeline.errors import ConfigError
from pipeline.logs import setup_logging
from pipeline.runtime.executors.child import ChildRunner, Link
from pipeline.runtime.executors.guards import (
    die_with_parent,
    limit_memory,
    offer_to_be_killed_first,
    wait_out_signals,
)
from pipeline.runtime.executors.wire import Kind, pack

__all__: list[str] = []


def main(pipe: int) -> int:
    """Serve the worker at the other end of the pipe."""
    die_with_parent()
    wait_out_signals()
    offer_to_be_killed_first()
    link = Link(Connection(pipe))
    hello = link.hello()
    link.listen()
    try:
        runner = _runner(hello, link)
    except BaseException as error:  # noqa: BLE001 - whatever importing the application raises
        link.say(pack(Kind.BROKEN, ": ".join(describe_failure(error)[:2])))
        return 1
    runner.serve()
    return 0


def _runner(hello: dict[str, Any], link: Link) -> ChildRunner:
    sys.path[:] = hello["path"]
    settings = unpack_settings(hello["settings"])
    setup_logging(settings.log.level, settings.log.format)
    app = _application(hello["target"])
    app.configure(settings)
    runner = ChildRunner(
        link,
        worker_id=hello["worker"],
        registry=app.registry,
        codec=app.codec(),
        effects=app.effects(),
        limited=settings.worker.process_memory_mb > 0,
    )
    if settings.worker.process_memory_mb:
        limit_memory(settings.worker.process_memory_mb)
    return runner


def _application(target: str) -> Pipeline:
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute or "app", None)
    if not isinstance(found, Pipeline):
        raise ConfigError(f"application is {target!r}; {attribute or 'app'!r} in {module} is no Pipeline")
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
