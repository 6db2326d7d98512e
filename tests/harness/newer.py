"""Publishers and workers of different versions in one world."""

from __future__ import annotations

from typing import Any

from pipeline import Publisher, load_settings
from tests.harness.processes import WorkerProcess
from tests.harness.versions import GREET, declare, greetings_in, write_versions
from tests.harness.world import World

__all__ = ["Versions"]


class Versions:
    """`settings` are those of all publishers and workers in it, with `__` for the dot."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        self._settings = {name.replace("__", "."): value for name, value in settings.items()}

    def schemas(self, version: int) -> str:
        """The folder with the schemas of a build of that version."""
        place = self.world.folder / f"built-v{version}"
        return str(write_versions(place, version, namespace=self.world.name))

    def settings(self, version: int, **changes: object) -> dict[str, Any]:
        own = {name.replace("__", "."): value for name, value in changes.items()}
        return {"schemas_dir": self.schemas(version), **self._settings, **own}

    def publisher(self, version: int, **changes: object) -> Publisher:
        """A publisher of that version, to be closed."""
        built = declare(version)
        environ = self.world.environment(self.settings(version, **changes))
        built.app.configure(load_settings(environ=environ))
        return built.app.publisher(source=f"v{version}")

    def publish(self, version: int, *payloads: dict[str, Any], **changes: object) -> list[str]:
        """Publish with a publisher of that version, and give the ids."""
        with self.publisher(version, **changes) as publisher:
            return [publisher.publish(GREET, payload, tenant="acme").job_id for payload in payloads]

    def encode(self, version: int, payload: dict[str, Any]) -> bytes:
        """What a build of that version writes, in single-object encoding."""
        built = declare(version)
        built.app.configure(load_settings(environ=self.world.environment(self.settings(version))))
        return built.app.codec().encode(GREET, built.model.model_validate(payload))

    def start_worker(self, version: int, **changes: object) -> WorkerProcess:
        return self.world.start_worker(
            target="tests.harness.versions:app",
            environment={"HARNESS_VERSION": str(version)},
            **self.settings(version, **changes),
        )

    def greeted(self) -> dict[str, dict[str, Any]]:
        """What the handlers were given, by job id."""
        return {entry["job_id"]: entry for entry in greetings_in(self.world.folder)}

    def wait_greeted(self, job_ids: list[str], *, timeout: float = 60.0) -> list[dict[str, Any]]:
        """Wait until these jobs were handled, and give what each was given."""
        self.world.wait("jobs handled", lambda: set(job_ids) <= self.greeted().keys(), timeout=timeout)
        greeted = self.greeted()
        return [greeted[job_id] for job_id in job_ids]
