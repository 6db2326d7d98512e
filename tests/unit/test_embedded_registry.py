"""The embedded schema registry, as far as no server is needed: how it is fetched, and what its command line tells."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.embedded import registry
from pipeline.embedded.registry import VERSION, EmbeddedRegistry, ensure_registry
from pipeline.errors import EmbeddedError


def archive_with(name: str) -> Callable[..., None]:
    """Stands for the download: the archive has one file of that name."""

    def fetch(coordinate: str, sha256: str, *, target: Path) -> None:
        with tarfile.open(target, "w:gz") as tar:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"jar"))

    return fetch


def test_it_is_fetched_once_and_found_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "fetch_artifact", archive_with("quarkus-run.jar"))
    said: list[str] = []
    folder = ensure_registry(said.append, cache=tmp_path)
    assert (folder / "quarkus-run.jar").read_bytes() == b"jar"
    assert folder.name == f"registry-{VERSION}"
    monkeypatch.setattr(registry, "fetch_artifact", None)
    assert ensure_registry(said.append, cache=tmp_path) == folder
    assert {path.name for path in tmp_path.iterdir()} <= {folder.name, f".{folder.name}.lock"}


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_an_archive_that_reaches_outside_its_folder_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cache = tmp_path / "deep" / "cache"
    monkeypatch.setattr(registry, "fetch_artifact", archive_with(name))
    with contextlib.suppress(EmbeddedError):
        ensure_registry(cache=cache)
    assert all(path.is_relative_to(cache / f"registry-{VERSION}") for path in tmp_path.rglob("outside"))
    assert not Path("/etc/outside").exists()


def test_a_fetch_that_was_cut_off_leaves_nothing_that_could_be_taken_for_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(coordinate: str, sha256: str, *, target: Path) -> None:
        target.write_bytes(b"no archive")

    monkeypatch.setattr(registry, "fetch_artifact", broken)
    with pytest.raises(EmbeddedError, match="PIPELINE_CACHE_DIR names another place"):
        ensure_registry(cache=tmp_path)
    assert not (tmp_path / f"registry-{VERSION}").exists()
    monkeypatch.setattr(registry, "fetch_artifact", archive_with("quarkus-run.jar"))
    assert (ensure_registry(cache=tmp_path) / "quarkus-run.jar").exists()


def test_the_password_is_not_on_the_command_line_which_everybody_may_read(tmp_path: Path) -> None:
    embedded = EmbeddedRegistry(
        tmp_path, dsn="postgresql://ann:hunter2@127.0.0.1:5432/any", database="of_its_own"
    )
    embedded._ports = {"client": 15001, "management": 15002}
    command = embedded._command()
    assert "hunter2" not in " ".join(command.argv)
    told = command.environment
    assert told["APICURIO_DATASOURCE_PASSWORD"] == "hunter2"
    assert told["APICURIO_DATASOURCE_URL"] == "jdbc:postgresql://127.0.0.1:5432/of_its_own"
    assert (told["QUARKUS_HTTP_PORT"], told["QUARKUS_MANAGEMENT_PORT"]) == ("15001", "15002")
    assert told["QUARKUS_HTTP_HOST"] == told["QUARKUS_MANAGEMENT_HOST"] == "127.0.0.1"
    assert (told["APICURIO_DATASOURCE_JDBC_MIN_SIZE"], told["APICURIO_DATASOURCE_JDBC_MAX_SIZE"]) == (
        "1",
        "5",
    )
    assert embedded.url == "http://127.0.0.1:15001/apis/ccompat/v7"
