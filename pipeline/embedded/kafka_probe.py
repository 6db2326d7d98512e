"""Asks a broker for its metadata over a plain socket: is it really serving clients?

A port that accepts connections is not enough: the broker listens before it has joined its own cluster.
Written out by hand (Metadata, version 1) because this package uses no Kafka client.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["serves_metadata"]

_METADATA, _VERSION, _CORRELATION = 3, 1, 7
_CLIENT = b"pipeline-embedded"
# Header: api key, version, correlation id, client id. Body: an empty list of topics.
_REQUEST = struct.pack(f">hhih{len(_CLIENT)}si", _METADATA, _VERSION, _CORRELATION, len(_CLIENT), _CLIENT, 0)


def serves_metadata(port: int, *, brokers: int = 1, timeout: float = 1.0) -> bool:
    """Whether the broker on 127.0.0.1:`port` answers, and counts at least so many brokers as alive."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            answer = _receive(connection, _receive_size(connection))
    except OSError:
        return False
    if len(answer) < 8:
        return False
    correlation, alive = struct.unpack_from(">ii", answer)
    return bool(correlation == _CORRELATION and alive >= brokers)


def _receive_size(connection: socket.socket) -> int:
    head = _receive(connection, 4)
    return struct.unpack(">i", head)[0] if len(head) == 4 else 0


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data
