"""A small HTTP server for /metrics, /livez and /readyz.

It must not be able to hurt the process that it reports on: see `pipeline.web.server` for its bounds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from pipeline.errors import PipelineError
from pipeline.web.server import JSON, Answer, BoundedServer

__all__ = ["Check", "HealthServer", "HttpUnavailable"]

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class HttpUnavailable(PipelineError):
    """The HTTP server cannot listen on its address."""


class Check(NamedTuple):
    """The answer to a health question: what was looked at, and what is wrong with it (empty: nothing)."""

    findings: Mapping[str, str]

    @property
    def ok(self) -> bool:
        return not any(self.findings.values())


class HealthServer:
    """Serves from threads of its own between `start` and `stop`; stopping twice is harmless.

    `metrics`, `ready` and `live` are called for each request, from any thread; they must not block. Port 0 takes any free
    port, see `port`. Raises `HttpUnavailable` from the constructor when the address cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes],
        ready: Callable[[], Check],
        live: Callable[[], Check],
        request_timeout: float = 5.0,
        max_connections: int = 16,
    ) -> None:
        routes = {
            "/metrics": lambda: Answer(HTTPStatus.OK, EXPOSITION, metrics()),
            "/livez": lambda: _health(live()),
            "/readyz": lambda: _health(ready()),
        }
        try:
            self._server = BoundedServer(
                host, port, routes, request_timeout=request_timeout, max_connections=max_connections
            )
        except OSError as error:
            raise HttpUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror or error}; "
                "worker.http_host and worker.http_port choose another address (port 0: any free one, off: none)"
            ) from None
        # How often it looks whether it shall stop, in seconds.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="pipeline-http", daemon=True
        )
        self._stopped = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the port. Answers that are being sent may still end, within the time limit."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _health(check: Check) -> Answer:
    body = {"ok": check.ok, "checks": {name: finding or "ok" for name, finding in check.findings.items()}}
    status = HTTPStatus.OK if check.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, JSON, json.dumps(body).encode() + b"\n")
