"""An HTTP server that cannot hurt its process: the number of connections, their time and their size are bounded.

A connection carries one request. Its head is read against one deadline, however slowly it drips in, and nothing beyond
the head is read; a connection beyond the allowed number is closed at once.
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["JSON", "Answer", "BoundedServer"]

log = logging.getLogger(__name__)
JSON = "application/json"
MAX_HEAD = 16_384
_END = re.compile(rb"\r?\n\r?\n")


class Answer(NamedTuple):
    """What a route gives."""

    status: HTTPStatus
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], Answer]]


class BoundedServer(ThreadingHTTPServer):
    """Answers GET and HEAD for the paths of `routes`, whose functions are called from any thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    allow_reuse_port = False  # else a second process on the port would silently take half of the requests

    def __init__(
        self, host: str, port: int, routes: Routes, *, request_timeout: float, max_connections: int
    ) -> None:
        self.routes = routes
        self.request_timeout = request_timeout
        self._slots = threading.BoundedSemaphore(max_connections)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look up the host's name here, which may take many seconds where no name server answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        error = sys.exception()
        if isinstance(error, OSError):  # the client went away, or was too slow
            log.debug("HTTP connection from %s broke: %s", client_address, error)
        else:
            log.error(
                "HTTP request from %s failed", client_address, exc_info=error, extra={"action": "http_failed"}
            )


class _Handler(BaseHTTPRequestHandler):
    server: BoundedServer
    server_version = "pipeline"
    sys_version = ""
    default_request_version = (
        "HTTP/1.0"  # a request without a version, or one that is none, gets a whole answer too
    )

    def setup(self) -> None:
        self.connection = self.request
        self._head = _read_head(self.connection, self.server.request_timeout)
        self.rfile = io.BytesIO(self._head)
        self.wfile = self._reply = io.BytesIO()

    def handle(self) -> None:
        if _END.search(self._head):
            self.handle_one_request()
        elif self._head:
            self.request_version, self.command, self.requestline = "HTTP/1.0", "", ""
            self._answer(
                _problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"allowed: {MAX_HEAD} bytes, whole")
            )

    def finish(self) -> None:
        # One write, whose whole time is bounded: a client that does not read holds its thread no longer than that.
        self.connection.settimeout(self.server.request_timeout)
        self.connection.sendall(self._reply.getvalue())

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            known = ", ".join(self.server.routes)
            self._answer(_problem(HTTPStatus.NOT_FOUND, f"no such path; there are: {known}"))
            return
        try:
            answer = route()
        except Exception:
            log.exception("%s failed", self.path, extra={"action": "http_failed"})
            answer = _problem(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the answer could not be made; the log says why"
            )
        self._answer(answer)

    do_HEAD = do_GET  # noqa: N815 - the library finds methods by such names

    def _refuse_method(self) -> None:
        self._answer(_problem(HTTPStatus.METHOD_NOT_ALLOWED, "allowed: GET, HEAD"))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method  # noqa: N815 - as above

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For the library, which calls this for a request that is no HTTP."""
        del explain
        self.close_connection = True
        self._answer(_problem(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        log.debug(format, *args)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _problem(status: HTTPStatus, message: str) -> Answer:
    return Answer(status, JSON, json.dumps({"error": message}).encode() + b"\n")


def _read_head(connection: socket.socket, timeout: float) -> bytes:
    """Read up to the empty line that ends the headers. Raises `TimeoutError` when it takes longer than `timeout`."""
    deadline = time.monotonic() + timeout
    head = b""
    while not _END.search(head) and len(head) <= MAX_HEAD:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(4096)
        if not chunk:
            break
        head += chunk
        if time.monotonic() > deadline:
            raise TimeoutError(f"no whole request within {timeout:g} s")
    return head
