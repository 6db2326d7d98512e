"""`pipeline dev`: a real Kafka and a real Postgres on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres, EmbeddedRegistry, prepare, start_servers
from pipeline.embedded.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.embedded import Servers

__all__ = ["command", "dev_command", "environment", "run_dev"]

DEFAULT_DATA_DIR = Path(".pipeline/dev")


def dev_command(on_ready: Callable[[Servers], None] | None = None) -> click.Command:
    """The command. `on_ready` is called once both servers serve, before the addresses are printed."""

    @click.command("dev")
    @click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help="Where data, ports and password live. They survive a restart.",
    )
    @click.option("--reset", is_flag=True, help="Remove the data of both servers first.")
    @click.option(
        "--registry",
        is_flag=True,
        help="Run a schema registry, too, over that Postgres; the first time it is fetched (158 MB).",
    )
    @click.option(
        "--prepare",
        "prepare_only",
        is_flag=True,
        help="Only fetch what is needed, make later starts quicker, end.",
    )
    def dev(data_dir: Path, *, reset: bool, registry: bool, prepare_only: bool) -> None:
        """Run a real Kafka and a real Postgres here, without Docker, until Ctrl-C."""
        if prepare_only:
            prepare(_say)
        else:
            run_dev(data_dir, reset=reset, registry=registry, on_ready=on_ready)

    return dev


def run_dev(
    data_dir: Path,
    *,
    reset: bool = False,
    registry: bool = False,
    on_ready: Callable[[Servers], None] | None = None,
) -> None:
    """Run the servers until Ctrl-C or SIGTERM, then stop them. Raises EmbeddedError when one ends by itself."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)  # both mean: stop in order
    try:
        _serve(data_dir.absolute(), reset=reset, registry=registry, on_ready=on_ready)
    except KeyboardInterrupt:
        _say("stopped; the data is kept")
    finally:
        signal.signal(signal.SIGTERM, former)


def _serve(
    data_dir: Path, *, reset: bool, registry: bool, on_ready: Callable[[Servers], None] | None
) -> None:
    if reset:
        _remove_data(data_dir)
    if not data_dir.exists():
        write_atomically(data_dir / ".gitignore", "*\n")  # data and password are not for anybody's repository
    _say(f"starting Kafka and Postgres in {data_dir}")
    with ExitStack() as stack:
        servers = stack.enter_context(start_servers(data_dir, log=_say))
        settings = environment(servers)
        checks = [servers.check]
        if registry:
            running = EmbeddedRegistry(data_dir / "registry", dsn=servers.postgres_dsn, log=_say)
            _say("starting the schema registry")
            stack.enter_context(running)
            settings["PIPELINE_SCHEMA_REGISTRY__URL"] = running.url
            checks.append(running.check)
        if on_ready is not None:
            on_ready(servers)
        _publish(settings, data_dir)
        while True:
            for check in checks:
                check()
            time.sleep(0.5)


def environment(servers: Servers) -> dict[str, str]:
    """The settings by which everything else of this package finds the servers."""
    return {
        "PIPELINE_KAFKA__BOOTSTRAP_SERVERS": servers.bootstrap_servers,
        "PIPELINE_POSTGRES__DSN": servers.postgres_dsn,
    }


def _publish(settings: dict[str, str], data_dir: Path) -> None:
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    write_atomically(data_dir / "env", lines, mode=0o600)
    click.echo(lines, nl=False)
    _say(f"ready. In another terminal: source {shlex.quote(str(data_dir / 'env'))}. Ctrl-C stops them.")


def _remove_data(data_dir: Path) -> None:
    _say(f"removing the data in {data_dir}")
    EmbeddedKafka(data_dir / "kafka").reset()
    EmbeddedPostgres(data_dir / "postgres").reset()
    (data_dir / "env").unlink(missing_ok=True)


def _say(message: str) -> None:
    click.echo(message, err=True)


command = dev_command()
