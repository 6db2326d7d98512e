"""Where one request ends and the next begins, in the protocols of Kafka and of Postgres, and which one it is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Protocol

__all__ = [
    "END_TXN",
    "GROUP_HEARTBEAT",
    "HEARTBEAT",
    "OFFSET_COMMIT",
    "PRODUCE",
    "KafkaRequests",
    "PostgresRequests",
    "Splitter",
    "kafka_request",
    "statement",
]

PRODUCE, OFFSET_COMMIT, HEARTBEAT, END_TXN, GROUP_HEARTBEAT = 0, 8, 12, 26, 68
_PLAIN_STARTUP = 196608  # version 3.0; other codes ask for encryption first, and a startup follows


class Splitter(Protocol):
    """Cuts the bytes of one connection, in the direction of the server, into whole requests."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class KafkaRequests:
    """A request is four bytes of length, two of its kind, and the rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while len(self._rest) >= 4:
            (length,) = struct.unpack_from(">i", self._rest)
            if len(self._rest) < 4 + length:
                return
            request, self._rest = self._rest[: 4 + length], self._rest[4 + length :]
            yield request


class PostgresRequests:
    """A message is one byte of kind, four of length, and the rest; those before the session begins have no kind."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while len(self._rest) >= 4 + (kind := int(self._begun)):
            (length,) = struct.unpack_from(">i", self._rest, kind)
            if len(self._rest) < kind + length:
                return
            message, self._rest = self._rest[: kind + length], self._rest[kind + length :]
            if not self._begun:
                self._begun = struct.unpack_from(">i", message, 4) == (_PLAIN_STARTUP,)
            yield message


def kafka_request(kind: int, *, containing: bytes = b"") -> Callable[[bytes], bool]:
    """Whether a request is of that kind, and has these bytes in it: the name of a topic, for instance."""
    return lambda request: struct.unpack_from(">h", request, 4) == (kind,) and containing in request


def statement(containing: bytes) -> Callable[[bytes], bool]:
    """Whether a message asks Postgres to run a statement with that text in it."""
    return lambda message: message[:1] in (b"Q", b"P") and containing in message
