"""Ports of the embedded servers: chosen once, remembered in the data directory, used again at the next start.

They lie below the range from which kernels number outgoing connections (Linux from 32768, macOS from
49152). A port inside that range can be lost while a server restarts: a client that keeps trying to
reach it may be given it as its own local port, and then connects to itself.
"""

from __future__ import annotations

import json
import random
import socket
from typing import TYPE_CHECKING

from pipeline.embedded.files import write_atomically
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["is_free", "remembered_ports"]

_LOWEST, _HIGHEST = 15_000, 30_000


def remembered_ports(file: Path, names: Sequence[str]) -> dict[str, int]:
    """One port per name: those in `file` as far as they are free now, else new ones. `file` is updated."""
    known = _read(file)
    ports: dict[str, int] = {}
    for name in names:
        port = known.get(name, 0)
        ports[name] = port if port and is_free(port) else _free_port(taken=set(ports.values()))
    if ports != known:
        write_atomically(file, json.dumps(ports))
    return ports


def is_free(port: int) -> bool:
    """Whether a server could listen there. Connections of an earlier server that linger do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port(*, taken: set[int]) -> int:
    # Random rather than counted up: two processes that look at the same time rarely meet.
    for port in random.sample(range(_LOWEST, _HIGHEST), 200):
        if port not in taken and is_free(port):
            return port
    raise EmbeddedError(f"no free TCP port between {_LOWEST} and {_HIGHEST} on 127.0.0.1 (tried 200 of them)")


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    try:
        return {str(name): int(port) for name, port in json.loads(file.read_text()).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise EmbeddedError(f"{file} is damaged ({error}): remove it, new ports are chosen then") from error
