"""The broker's disk is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import PublishFailed
from pipeline.embedded import EmbeddedKafka
from tests.faults.case import Case, scenario
from tests.faults.matrix import NotHere
from tests.harness.jobs import Task
from tests.harness.world import World
from tests.servers import TestServers

__all__: list[str] = []

_MEGABYTE = 1 << 20
_DISK = 192 * _MEGABYTE


@scenario(20)
def the_disk_of_the_broker_is_full(case: Case) -> None:
    """The broker gives up; no publish succeeds falsely; with room again, and the broker started, all goes on."""
    disk = case.keep(_small_disk(case.folder / "disk"))
    kafka = case.keep(EmbeddedKafka(disk / "kafka", temporary=True))
    servers = TestServers(kafka.bootstrap_servers, case.site.postgres.dsn)
    world = case.world(on=servers, settings={"publisher.timeout": 3})
    with case.loaded(world) as loaded:
        with loaded.load.fault():
            filling = disk / "filling"
            _fill(filling)
            world.wait("a publish is refused", lambda: loaded.load.refused, timeout=90)
            acknowledged = [number for number in range(3) if _is_acknowledged(world, number)]
            filling.unlink()
            kafka.restart()
        assert acknowledged == []
    case.judge(loaded)


def _is_acknowledged(world: World, number: int) -> bool:
    try:
        world.publisher.publish(world.jobs.plain, Task(name=f"full-{number}"), tenant="tenant-1")
    except PublishFailed:
        return False
    return True


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own in memory. Only root may mount one."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotHere("no small file system can be mounted here: it takes Linux and root") from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _fill(file: Path) -> None:
    """Take all the room that is left."""
    with file.open("wb") as stream, suppress(OSError):
        while True:
            os.write(stream.fileno(), bytes(_MEGABYTE))
