"""The embedded servers, for real: they keep data and ports, come back after crashes, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres, ExtraListener, Servers, prepare, start_servers
from pipeline.embedded.kafka_probe import serves_metadata
from pipeline.errors import EmbeddedError

pytestmark = pytest.mark.servers

# A process that starts the servers and then waits, to be killed.
OWNER = """
import signal, sys
from pathlib import Path
from pipeline.embedded import start_servers
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
servers = start_servers(folder, log=lambda line: print(line, flush=True))
print("up", servers.kafka.pid, servers.postgres.pid, servers.data_dir, flush=True)
signal.pause()
"""
DEV = "import sys; from pipeline.cli import main; sys.argv[1:1] = ['dev']; main()"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with start_servers() as running:
        yield running


@contextlib.contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """The lines that it printed, up to the one that starts with `word`."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(word):
            return lines
    raise AssertionError(f"it ended before it printed {word!r}: {lines}")


def wait_for(condition: Callable[[], bool], *, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Servers and watchdogs of a data directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and any(
                str(folder) in part for part in process.cmdline()
            ):
                found.append(process)
    return found


def execute(servers: Servers, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(servers.postgres_dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def topics(servers: Servers) -> set[str]:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
    return set(admin.list_topics(timeout=20).topics)


def create_topic(servers: Servers, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(timeout=20)


def test_rows_topics_ports_and_password_survive_a_stop_and_a_start(tmp_path: Path) -> None:
    with start_servers(tmp_path) as first:
        addresses = (first.bootstrap_servers, first.postgres_dsn)
        create_topic(first, "kept")
        execute(first, "create table kept as select 42 as n")
    assert processes_of(tmp_path) == []

    with start_servers(tmp_path) as second:
        assert (second.bootstrap_servers, second.postgres_dsn) == addresses
        assert "kept" in topics(second)
        assert execute(second, "select n from kept") == [(42,)]


def test_postgres_writes_to_disk_before_it_confirms_and_demands_the_password(servers: Servers) -> None:
    assert execute(servers, "select current_setting('fsync'), current_setting('synchronous_commit')") == [
        ("on", "on")
    ]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(servers.postgres_dsn, password="guessed")


def test_kafka_makes_no_topic_that_nobody_created(servers: Servers) -> None:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
    admin.list_topics("imaginary", timeout=20)
    assert "imaginary" not in topics(servers)


def test_both_come_back_where_they_were_after_a_crash(servers: Servers) -> None:
    assert servers.kafka
    assert servers.postgres
    addresses = (servers.bootstrap_servers, servers.postgres_dsn)
    create_topic(servers, "crash")
    execute(servers, "create table crash as select 1 as n")

    servers.kafka.kill()
    servers.postgres.kill()
    assert not servers.kafka.running
    with pytest.raises(EmbeddedError, match=r"Kafka ended with status -9.*server\.log ends:"):
        servers.check()
    servers.kafka.start()
    servers.postgres.start()

    assert (servers.bootstrap_servers, servers.postgres_dsn) == addresses
    assert "crash" in topics(servers)
    assert execute(servers, "select n from crash") == [(1,)]


def test_both_answer_nothing_while_paused_and_go_on_when_resumed(servers: Servers) -> None:
    assert servers.kafka
    assert servers.postgres
    servers.kafka.pause()
    servers.postgres.pause()
    try:
        assert not serves_metadata(servers.kafka.port, timeout=0.3)
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(servers.postgres_dsn, connect_timeout=2)
    finally:
        servers.kafka.resume()
        servers.postgres.resume()
    assert execute(servers, "select 1") == [(1,)]
    kafka = servers.kafka
    wait_for(lambda: serves_metadata(kafka.port))


def test_a_second_owner_of_a_running_data_directory_is_refused(servers: Servers) -> None:
    for what in (
        lambda: start_servers(servers.data_dir),
        lambda: EmbeddedKafka(servers.data_dir / "kafka").reset(),
    ):
        with pytest.raises(EmbeddedError, match=rf"in use by another process \(pid {os.getpid()}\)"):
            what()
    assert execute(servers, "select 1") == [(1,)]


def test_a_broker_takes_one_more_listener_for_a_proxy_in_front(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", extra_listeners=[ExtraListener("PROXY", 14_981, 14_982)]) as kafka:
        assert serves_metadata(14_981)
        assert serves_metadata(kafka.port)
        admin = AdminClient({"bootstrap.servers": "127.0.0.1:14981", "log_level": 0})
        assert [broker.port for broker in admin.list_topics(timeout=10).brokers.values()] == [14_982]


def test_a_restart_where_it_was_is_refused_when_another_took_the_port(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres") as postgres:
        postgres.stop()
        with (
            socket.create_server(("127.0.0.1", postgres.port)),
            pytest.raises(EmbeddedError, match=f"another process took its client port {postgres.port}"),
        ):
            postgres.start()
        postgres.start()


def test_preparing_once_is_enough_and_the_broker_starts_from_what_was_recorded(tmp_path: Path) -> None:
    prepare()
    said: list[str] = []
    prepare(said.append)
    assert said == []
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        arguments = psutil.Process(kafka.pid).cmdline()
        assert any(argument.startswith("-XX:AOTCache=") for argument in arguments)
        assert "error has occurred while processing the AOT cache" not in kafka.log_file.read_text()


def test_a_path_with_spaces_commas_and_foreign_letters_works(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "größe, 東京" / "kafka") as kafka:
        assert kafka.running


def test_both_end_when_their_owner_is_killed_and_a_temporary_directory_goes_too() -> None:
    with python(OWNER) as owner:
        _, kafka, postgres, folder = read_until(owner, "up")[-1].split(" ", 3)
        owner.kill()
        owner.wait()
    wait_for(lambda: not psutil.pid_exists(int(kafka)) and not psutil.pid_exists(int(postgres)))
    wait_for(lambda: not Path(folder).exists())
    assert processes_of(Path(folder)) == []


def test_what_outlived_its_owner_is_stopped_before_the_next_start(tmp_path: Path) -> None:
    with python(OWNER, tmp_path) as owner:
        read_until(owner, "up")
        watchdogs = [
            child for child in psutil.Process(owner.pid).children() if "watchdog.py" in str(child.cmdline())
        ]
        assert len(watchdogs) == 2
        for watchdog in watchdogs:
            watchdog.kill()
        owner.kill()
        owner.wait()
    survivors = processes_of(tmp_path)
    assert survivors

    said: list[str] = []
    with start_servers(tmp_path, log=said.append) as servers:
        assert sum("an earlier run left behind" in line for line in said) == 2
        assert not [process for process in survivors if process in processes_of(tmp_path)]
        assert execute(servers, "select 1") == [(1,)]
    assert processes_of(tmp_path) == []


def test_the_command_prints_and_stores_the_settings_and_stops_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    with python(DEV, "--data-dir", folder) as dev:
        lines = read_until(dev, "ready")
        exports = [line for line in lines if line.startswith("export ")]
        assert [line.partition("=")[0] for line in exports] == [
            "export PIPELINE_KAFKA__BOOTSTRAP_SERVERS",
            "export PIPELINE_POSTGRES__DSN",
        ]
        assert (folder / "env").read_text().splitlines() == exports
        assert stat.S_IMODE((folder / "env").stat().st_mode) == 0o600

        with python(DEV, "--data-dir", folder) as second:
            said = second.communicate(timeout=30)[0]
            assert "in use by another process" in said
            assert "Traceback" not in said
            assert second.returncode == 1

        dev.send_signal(signal.SIGTERM)
        assert "stopped; the data is kept" in dev.communicate(timeout=60)[0]
        assert dev.returncode == 0
    assert processes_of(folder) == []


def test_reset_starts_with_empty_servers(tmp_path: Path) -> None:
    with start_servers(tmp_path, kafka=False) as servers:
        execute(servers, "create table gone (n int)")
    with python(DEV, "--data-dir", tmp_path, "--reset") as dev:
        read_until(dev, "ready")
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=60)
        assert dev.returncode == 0
    with start_servers(tmp_path, kafka=False) as servers:
        assert execute(servers, "select to_regclass('gone') is null") == [(True,)]
