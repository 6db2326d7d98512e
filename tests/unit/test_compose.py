"""docker-compose.yml and what it uses. No Docker engine runs here: what can be checked without one is checked."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli import COMMANDS
from pipeline.config import Settings, load_settings
from pipeline.embedded.registry import VERSION as REGISTRY_VERSION
from pipeline.web import Check, HealthServer

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture
def worker(services: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that a worker container ends up with."""
    monkeypatch.chdir(tmp_path)
    return load_settings(environ=environment(services["worker"]))


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def seconds(text: str) -> float:
    assert re.fullmatch(r"\d+s", text)
    return float(text[:-1])


def local_paths(service: dict[str, Any]) -> Iterator[Path]:
    """Files of this repository that a service is built from or mounts."""
    if "build" in service:
        yield ROOT / service["build"]["context"] / service["build"]["dockerfile"]
    for volume in service.get("volumes", []):
        if volume.startswith("."):
            yield ROOT / volume.split(":")[0]


def test_the_topology_is_there(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"kafka", "postgres", "setup", "worker", "prometheus", "registry"}


def test_every_foreign_image_is_pinned(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        if "build" not in service:
            assert re.fullmatch(r"[a-z/-]+:v?\d+(\.\d+)*", service["image"]), name


def test_the_registry_is_optional_and_the_one_that_tests_run(services: dict[str, dict[str, Any]]) -> None:
    assert services["registry"]["profiles"] == ["registry"]
    assert services["registry"]["image"].endswith(f":{REGISTRY_VERSION}")


def test_every_setting_in_it_is_a_real_one_with_a_possible_value(
    services: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = [service for service in services.values() if "build" in service]
    assert len(ours) == 2
    for service in ours:
        settings = load_settings(environ=environment(service))
        given = [
            name for name in environment(service) if name.startswith("PIPELINE_") and "_DEMO_" not in name
        ]
        assert len(settings.origins) == len(given) > 0


def test_every_command_is_one_of_the_command_line(services: dict[str, dict[str, Any]]) -> None:
    nouns = re.findall(r"pipeline ([a-z]+)", " ".join(services["setup"]["command"]))
    assert nouns == ["db", "topics"]
    assert services["worker"]["command"][:2] == ["pipeline", "worker"]
    assert {*nouns, "worker"} <= set(COMMANDS)


def test_the_worker_runs_handlers_that_exist(services: dict[str, dict[str, Any]]) -> None:
    module, _, attribute = services["worker"]["command"][2].partition(":")
    assert importlib.util.find_spec(module) is not None
    assert attribute == "app"


def test_the_table_of_the_demo_is_the_one_that_the_demo_makes() -> None:
    made = [(INFRA / "demo.sql").read_text(), (ROOT / "pipeline/demo/run.py").read_text()]
    columns = [re.search(r"demo_sent \((.*?)\)", text, re.DOTALL) for text in made]
    first, second = (" ".join(found.group(1).split()) for found in columns if found)
    assert first == second


def test_every_file_that_it_names_exists(services: dict[str, dict[str, Any]]) -> None:
    paths = [path for service in services.values() for path in local_paths(service)]
    assert len(paths) >= 4
    assert [path for path in paths if not path.is_file()] == []


def test_no_secret_is_written_in_it(compose: dict[str, Any]) -> None:
    assert compose["secrets"] == {"postgres_password": {"environment": "POSTGRES_PASSWORD"}}
    for name, service in compose["services"].items():
        for variable, value in environment(service).items():
            # Apicurio reads no file: it gets the variable that the secret is made from.
            hidden = variable.endswith("_FILE") or value == "${POSTGRES_PASSWORD}"
            assert "PASSWORD" not in variable or hidden, name
            assert not re.search(r"://[^/@]*:[^/@]*@|password=", value), name


def test_ports_are_open_to_this_machine_only(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_everything_that_keeps_running_says_whether_it_is_well(services: dict[str, dict[str, Any]]) -> None:
    assert [name for name, service in services.items() if "healthcheck" not in service] == ["setup"]
    waits = {name: service.get("depends_on", {}) for name, service in services.items()}
    assert {key: wait["condition"] for key, wait in waits["setup"].items()} == {
        "kafka": "service_healthy",
        "postgres": "service_healthy",
    }
    assert waits["worker"]["setup"]["condition"] == "service_completed_successfully"


def test_a_worker_has_time_to_drain_before_it_is_killed(
    services: dict[str, dict[str, Any]], worker: Settings
) -> None:
    assert seconds(services["worker"]["stop_grace_period"]) > worker.worker.drain_timeout + 5


def test_workers_reach_the_servers_where_these_listen(
    services: dict[str, dict[str, Any]], worker: Settings
) -> None:
    kafka, postgres = services["kafka"]["environment"], services["postgres"]["environment"]
    assert f"INSIDE://{worker.kafka.bootstrap_servers}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    names = {listener.partition("://")[0] for listener in kafka["KAFKA_LISTENERS"].split(",")}
    assert names == {pair.split(":")[0] for pair in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    dsn = f"postgresql://{postgres['POSTGRES_USER']}@postgres:5432/{postgres['POSTGRES_DB']}"
    assert worker.postgres.dsn.get_secret_value() == dsn


def test_prometheus_scrapes_the_port_that_workers_serve(
    services: dict[str, dict[str, Any]], worker: Settings
) -> None:
    config = yaml.safe_load((INFRA / "prometheus.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["worker"], worker.worker.http_port)
    assert services["worker"]["healthcheck"]["test"] == [
        "CMD",
        "healthcheck.py",
        str(worker.worker.http_port),
    ]
    assert worker.worker.http_host == "0.0.0.0"


# --- the image


def test_the_image_copies_files_that_exist_and_are_let_in() -> None:
    lines = (INFRA / "Dockerfile").read_text().splitlines()
    copied = [shlex.split(line)[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    sources = [source for words in copied for source in words if not source.startswith("--")]
    let_in = [
        line[1:] for line in (INFRA / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    assert len(sources) >= 7
    assert sorted(sources) == sorted(let_in)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_takes_pinned_versions_and_is_not_run_by_root() -> None:
    text = (INFRA / "Dockerfile").read_text()
    assert "PIP_CONSTRAINT=/src/constraints.txt" in text
    assert text.index("\nUSER pipeline\n") < text.index("\nENTRYPOINT ")
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:3.11-slim"}


def test_the_entry_script_hands_over_the_password_and_the_command(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("two words\n")
    told = run_entrypoint({"POSTGRES_PASSWORD_FILE": str(tmp_path / "password")})
    assert told.stdout == "<two words> <a b>\n"
    assert run_entrypoint({}).stdout == "<> <a b>\n"


def test_the_entry_script_stops_where_the_password_cannot_be_read() -> None:
    told = run_entrypoint({"POSTGRES_PASSWORD_FILE": "/nowhere/password"})
    assert told.returncode != 0
    assert "/nowhere/password" in told.stderr


def run_entrypoint(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(INFRA / "entrypoint.sh"), "sh", "-c", 'echo "<${PGPASSWORD:-}> <$1>"', "-", "a b"]
    path = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, env={**path, **variables}, capture_output=True, text=True, check=False)


def test_scripts_may_be_run() -> None:
    for name in ("entrypoint.sh", "healthcheck.py"):
        assert os.access(INFRA / name, os.X_OK), name


def test_the_health_check_of_the_image_follows_readiness(capsys: pytest.CaptureFixture[str]) -> None:
    findings = {"kafka": ""}
    spec = importlib.util.spec_from_file_location("healthcheck", INFRA / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    healthcheck = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(healthcheck)
    server = HealthServer(
        "127.0.0.1", 0, metrics=bytes, ready=lambda: Check(findings), live=lambda: Check({})
    )
    server.start()
    try:
        assert healthcheck.main(server.port) == 0
        findings["kafka"] = "no broker answers"
        assert healthcheck.main(server.port) == 1
        assert "no broker answers" in capsys.readouterr().out
    finally:
        server.stop()
    assert healthcheck.main(server.port) == 1
