"""The small parts of the embedded servers: ports, locks, files, the broker's configuration, the probe."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.embedded import EmbeddedPostgres, ExtraListener, processes
from pipeline.embedded.files import tail, write_atomically
from pipeline.embedded.kafka_config import Member, broker_properties
from pipeline.embedded.kafka_probe import serves_metadata
from pipeline.embedded.locks import FileLock
from pipeline.embedded.ports import is_free, remembered_ports
from pipeline.embedded.processes import Command, ServerProcess
from pipeline.errors import EmbeddedError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_ports_are_chosen_once_and_remembered(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = remembered_ports(file, ["client", "controller"])
    assert len(set(first.values())) == 2
    assert remembered_ports(file, ["client", "controller"]) == first


def test_ports_lie_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    ports = remembered_ports(tmp_path / "ports.json", [str(n) for n in range(50)]).values()
    assert all(15_000 <= port < 30_000 for port in ports)


def test_a_remembered_port_that_was_taken_is_replaced(tmp_path: Path, listener: socket.socket) -> None:
    file = tmp_path / "ports.json"
    file.write_text(json.dumps({"client": port_of(listener)}))
    assert not is_free(port_of(listener))
    chosen = remembered_ports(file, ["client"])
    assert chosen["client"] != port_of(listener)
    assert json.loads(file.read_text()) == chosen


@pytest.mark.parametrize("text", ["", "[1]", '{"client": "many"}'])
def test_a_damaged_port_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ports.json"
    file.write_text(text)
    with pytest.raises(EmbeddedError, match=r"ports\.json is damaged .* remove it"):
        remembered_ports(file, ["client"])


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire(wait=False)
    assert first.acquire(wait=False), "taking it twice is harmless"
    assert not second.acquire(wait=False)
    assert second.holder() == str(os.getpid())
    first.release()
    with second:
        assert not first.acquire(wait=False)


def test_a_file_is_written_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret"
    write_atomically(path, "first", mode=0o600)
    write_atomically(path, "second", mode=0o600)
    assert path.read_text() == "second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == "(no log was written)"
    log.write_bytes(b"".join(b"%d \xff\n" % n for n in range(100)))
    assert tail(log, lines=2) == "98 \ufffd\n99 \ufffd"


def test_the_broker_listens_on_this_machine_only() -> None:
    properties = broker_properties(
        client_port=1,
        controller_port=2,
        extra_listeners=[ExtraListener("PROXY", 3, 4, "SSL")],
        overrides={"node.id": "9"},
    )
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1,PROXY://127.0.0.1:3,CONTROLLER://127.0.0.1:2"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,PROXY://127.0.0.1:4"
    protocols = "PLAINTEXT:PLAINTEXT,PROXY:SSL,CONTROLLER:PLAINTEXT"
    assert properties["listener.security.protocol.map"] == protocols
    assert properties["node.id"] == "9"
    assert properties["auto.create.topics.enable"] == "false"


@pytest.mark.parametrize(("size", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (5, "3", "2")])
def test_a_cluster_keeps_up_to_three_copies_and_asks_for_all_but_one(
    size: int, copies: str, in_sync: str
) -> None:
    member = Member("id", 1, 9000, {node: 9100 + node for node in range(1, size + 1)})
    properties = broker_properties(client_port=9000, controller_port=member.controller_port, member=member)
    assert properties["controller.quorum.voters"].split(",")[-1] == f"{size}@127.0.0.1:{9100 + size}"
    assert properties["default.replication.factor"] == copies
    assert properties["offsets.topic.replication.factor"] == copies
    assert properties["min.insync.replicas"] == in_sync
    assert "controller.quorum.bootstrap.servers" not in properties


def answer_once(server: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "serves"),
    [
        (struct.pack(">iii", 8, 7, 1), True),
        (struct.pack(">iii", 8, 7, 0), False),
        (struct.pack(">iii", 8, 6, 1), False),
        (struct.pack(">ii", 8, 7), False),
        (b"", False),
        (b"\0", False),
    ],
    ids=["one broker", "no broker yet", "another question", "cut off", "closed", "one byte"],
)
def test_a_broker_serves_once_it_counts_itself(listener: socket.socket, answer: bytes, serves: bool) -> None:  # noqa: FBT001
    thread = answer_once(listener, answer)
    assert serves_metadata(port_of(listener), timeout=5) is serves
    thread.join()


def test_a_closed_port_serves_nothing(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    assert not serves_metadata(port)


def test_a_folder_of_somebody_else_is_never_taken_for_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    server = EmbeddedPostgres(tmp_path)
    for what in (server.start, server.reset):
        with pytest.raises(EmbeddedError, match="is not empty and was not made for the embedded Postgres"):
            what()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_server_that_was_not_started_has_no_pid(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    assert not server.running
    server.stop()
    with pytest.raises(EmbeddedError, match="is not started"):
        server.kill()


def test_once_a_server_has_ended_nobody_is_taken_for_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may be a stranger's by then."""
    command = Command(
        name="server",
        argv=[sys.executable, "-c", ""],
        log_file=tmp_path / "log",
        stop_signal=signal.SIGTERM,
        environment=os.environ,
    )
    server = ServerProcess(command)
    server._server.wait()
    monkeypatch.setattr(processes, "_children", lambda pid: pytest.fail(f"the children of {pid}"))
    server.pause()
    server.resume()
    server.kill()
