"""The cache of the broker's jars: intact or fetched again, never half there, and clear when it cannot be."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.embedded import download, jars
from pipeline.errors import EmbeddedError

BROKER = ("org.apache.kafka:kafka_2.13:9.9.9", b"the broker")
CLIENT = ("org.apache.kafka:kafka-clients:9.9.9", b"the client")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kafka-jars.lock"
    path.write_text("# two\n" + "".join(f"{name} {sha256(content)}\n" for name, content in (BROKER, CLIENT)))
    monkeypatch.setattr(jars, "_lock_path", lambda: path)
    monkeypatch.setenv("PIPELINE_CACHE_DIR", str(tmp_path / "cache"))
    return path


class Repository:
    """Stands in for the network: what it holds, and what was asked of it."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = {BROKER[0]: BROKER[1], CLIENT[0]: CLIENT[1], **contents}
        self.asked: list[str] = []
        self.failures = 0

    def resolve(self, coordinate: str, folder: Path) -> Path:
        self.asked.append(coordinate)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route to host")
        path = folder / "resolved.jar"
        path.write_bytes(self.contents[coordinate])
        return path


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository()
    monkeypatch.setattr(download, "_resolve", repository.resolve)
    return repository


def quiet(_: str) -> None:
    return None


def test_the_lock_that_ships_pins_the_broker_and_every_jar_it_needs() -> None:
    pinned = jars.read_lock()
    assert len(pinned) == 46
    assert len({jar.filename for jar in pinned}) == 46
    assert jars.kafka_version(pinned) == "4.3.1"
    versions = {
        jar.coordinate.rpartition(":")[2] for jar in pinned if jar.coordinate.startswith("org.apache.kafka:")
    }
    assert versions == {"4.3.1"}


def test_missing_jars_are_fetched_once_and_then_found(
    lock: Path, repository: Repository, tmp_path: Path
) -> None:
    said: list[str] = []
    paths = jars.ensure_jars(said.append)
    assert [path.read_bytes() for path in paths] == [BROKER[1], CLIENT[1]]
    assert paths[0] == tmp_path / "cache" / "kafka-9.9.9" / "kafka_2.13-9.9.9.jar"
    assert said[0] == "downloading Kafka 9.9.9: 2 files"
    assert jars.ensure_jars(quiet) == paths
    assert repository.asked == [BROKER[0], CLIENT[0]]


@pytest.mark.parametrize("damage", [b"", b"the brokex", b"the broker and more"])
def test_a_damaged_jar_is_noticed_named_and_fetched_again(
    lock: Path, repository: Repository, damage: bytes
) -> None:
    broker, _ = jars.ensure_jars(quiet)
    broker.write_bytes(damage)
    said: list[str] = []
    jars.ensure_jars(said.append)
    assert broker.read_bytes() == BROKER[1]
    assert "damaged" in said[0]
    assert "kafka_2.13-9.9.9.jar" in said[0]
    assert repository.asked == [BROKER[0], CLIENT[0], BROKER[0]]


def test_a_failed_download_is_tried_three_times(lock: Path, repository: Repository) -> None:
    repository.failures = 2
    jars.ensure_jars(quiet)
    assert repository.asked == [BROKER[0]] * 3 + [CLIENT[0]]


def test_a_download_that_keeps_failing_says_what_to_do(
    lock: Path, repository: Repository, tmp_path: Path
) -> None:
    repository.failures = 3
    with pytest.raises(EmbeddedError) as caught:
        jars.ensure_jars(quiet)
    message = str(caught.value)
    for part in (BROKER[0], "no route to host", "retry", str(tmp_path / "cache"), sha256(BROKER[1])):
        assert part in message
    assert jars.ensure_jars(quiet)


def test_a_file_that_is_not_the_pinned_one_never_reaches_the_cache(
    lock: Path, repository: Repository, tmp_path: Path
) -> None:
    repository.contents[CLIENT[0]] = b"something else"
    with pytest.raises(EmbeddedError, match=f"its sha256 is {sha256(b'something else')}"):
        jars.ensure_jars(quiet)
    assert sorted(path.name for path in (tmp_path / "cache" / "kafka-9.9.9").iterdir()) == [
        ".lock",
        "kafka_2.13-9.9.9.jar",
    ]


def test_a_jar_put_there_by_hand_is_taken(lock: Path, repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kafka-9.9.9"
    folder.mkdir(parents=True)
    (folder / "kafka-clients-9.9.9.jar").write_bytes(CLIENT[1])
    jars.ensure_jars(quiet)
    assert repository.asked == [BROKER[0]]


def _fetch_slowly(together: Callable[[], object], lock: Path, journal: Path) -> None:
    """In a process of its own: a download that takes until the other process is known to have begun too."""
    os.environ["PIPELINE_CACHE_DIR"] = str(lock.parent / "cache")
    jars._lock_path = lambda: lock
    repository = Repository()

    def resolve(coordinate: str, folder: Path) -> Path:
        with journal.open("a") as file:
            file.write(f"{coordinate}\n")
        return repository.resolve(coordinate, folder)

    download._resolve = resolve
    together()
    jars.ensure_jars(quiet)


def test_two_processes_at_once_fetch_each_jar_once(lock: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    journal = tmp_path / "journal"
    both = [context.Process(target=_fetch_slowly, args=(together.wait, lock, journal)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted(journal.read_text().splitlines()) == sorted([BROKER[0], CLIENT[0]])


def test_a_cache_folder_that_cannot_be_written_is_named(
    lock: Path, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PIPELINE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(EmbeddedError, match="PIPELINE_CACHE_DIR names another folder"):
        jars.ensure_jars(quiet)


@pytest.mark.parametrize("line", ["group:artifact 12", "group:artifact:1.0", f"artifact:1.0 {'0' * 64}"])
def test_a_broken_line_of_the_lock_is_quoted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "lock"
    path.write_text(line)
    with pytest.raises(EmbeddedError, match="is not 'group:artifact:version sha256'"):
        jars.read_lock(path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PIPELINE_CACHE_DIR": "/own"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/pipeline"),
        ({"HOME": "/home/ada"}, "/home/ada/.cache/pipeline"),
    ],
)
def test_the_cache_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("PIPELINE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert jars.cache_root() == Path(expected)
