"""The command line: `pipeline NOUN VERB`. One small file per noun."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from pipeline.cli.common import Session
from pipeline.errors import PipelineError

__all__ = ["main"]

# name -> module that has it as `command`; imported when it is used, so that each starts fast.
COMMANDS = {
    "breakers": "list circuit breakers, open or close one by hand",
    "config": "show the settings in force",
    "console": "look into a topic, decoded",
    "db": "migrate the database",
    "demo": "run the whole job on embedded servers, and check every number",
    "dev": "run a real Kafka and a real Postgres for development",
    "dlq": "list, show and replay dead letters",
    "job": "tell the story of a job",
    "publish": "publish one job",
    "schemas": "write, check, release and register the schemas of payloads",
    "topics": "compare the topics with their declaration, and apply it",
    "worker": "run a worker",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pipeline.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Settings file instead of ./pipeline.toml.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting, such as worker.lease=30.",
)
@click.version_option(package_name="partitioned-pipeline")
@click.pass_context
def _group(ctx: click.Context, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """A job queue on Kafka and Postgres."""
    ctx.obj = Session(config_file, assignments)


def main() -> None:
    """The console script: every error of ours is one plain sentence and exit code 1."""
    try:
        _group(prog_name="pipeline")
    except PipelineError as error:
        click.echo(f"pipeline: {error}", err=True)
        sys.exit(1)
