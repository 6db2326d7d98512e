"""The HTTP server for health and metrics, over real sockets."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from pipeline.errors import PipelineError
from pipeline.web import Check, HealthServer, HttpUnavailable


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Health:
    """What the server is told, to be changed by a test."""

    def __init__(self) -> None:
        self.live = {"poll loop": ""}
        self.ready = {"kafka": "", "postgres": ""}
        self.metrics: Callable[[], bytes] = lambda: b"up 1\n"

    def scrape(self) -> bytes:
        return self.metrics()


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    yield from serving(health, request_timeout=60)


@pytest.fixture
def impatient(health: Health) -> Iterator[HealthServer]:
    """One that drops even an honest client, should the machine be too busy."""
    yield from serving(health, request_timeout=0.5)


def serving(health: Health, *, request_timeout: float) -> Iterator[HealthServer]:
    running = HealthServer(
        "127.0.0.1",
        0,
        metrics=health.scrape,
        ready=lambda: Check(health.ready),
        live=lambda: Check(health.live),
        request_timeout=request_timeout,
        max_connections=4,
    )
    running.start()
    yield running
    running.stop()


def ask(server: HealthServer, path: str, method: str = "GET", body: bytes | None = None) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def send_raw(server: HealthServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        with suppress(OSError):  # the server need not take all of it
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        return receive_all(connection)


def receive_all(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):  # the server closed while we still had something to say
        while chunk := connection.recv(65_536):
            received += chunk
    return received


def eventually(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        pause.wait(0.01)


def test_metrics_are_served_as_they_are(server: HealthServer) -> None:
    reply = ask(server, "/metrics?x=1")
    assert (reply.status, reply.body) == (200, b"up 1\n")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert reply.headers["content-length"] == "5"
    assert "python" not in reply.headers["server"].lower()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_is_200_while_every_check_is_fine(server: HealthServer, path: str) -> None:
    reply = ask(server, path)
    assert reply.status == 200
    assert json.loads(reply.body)["ok"] is True


def test_health_is_503_and_names_the_check_that_fails(server: HealthServer, health: Health) -> None:
    health.ready["postgres"] = "no heartbeat for 20 s"
    reply = ask(server, "/readyz")
    assert reply.status == 503
    assert json.loads(reply.body) == {
        "ok": False,
        "checks": {"kafka": "ok", "postgres": "no heartbeat for 20 s"},
    }
    assert ask(server, "/livez").status == 200
    health.ready["postgres"] = ""
    assert ask(server, "/readyz").status == 200


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/nowhere"])
def test_head_gives_the_same_headers_without_the_body(server: HealthServer, path: str) -> None:
    get, head = ask(server, path), ask(server, path, "HEAD")
    assert head.body == b""
    assert (head.status, head.headers["content-length"]) == (get.status, get.headers["content-length"])


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/livez%0d%0aX:1"])
def test_any_other_path_is_404_and_tells_the_paths_there_are(server: HealthServer, path: str) -> None:
    reply = ask(server, path)
    assert reply.status == 404
    assert "/metrics, /livez, /readyz" in json.loads(reply.body)["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_any_other_method_is_405(server: HealthServer, method: str) -> None:
    reply = ask(server, "/metrics", method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"BREW /metrics HTTP/1.1\r\n\r\n", b"501"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"\xff\xfe\x00\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: x", b"431"),
        (b"GET /livez\n\n", b"200"),
    ],
)
def test_what_is_no_proper_request_gets_a_plain_error(
    server: HealthServer, data: bytes, status: bytes
) -> None:
    assert status in send_raw(server, data)
    assert ask(server, "/livez").status == 200


def test_an_endless_request_is_cut_off(server: HealthServer) -> None:
    answer = send_raw(server, b"GET /" + b"a" * 1_000_000)
    assert answer == b"" or b" 431 " in answer  # the answer may be lost where so much was still to be sent
    assert ask(server, "/livez").status == 200


def test_metrics_that_fail_are_a_500_and_a_line_in_the_log(
    server: HealthServer, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bytes:
        raise RuntimeError("secret detail")

    health.metrics = fail
    reply = ask(server, "/metrics")
    assert reply.status == 500
    assert b"secret detail" not in reply.body
    assert "secret detail" in caplog.text
    assert ask(server, "/livez").status == 200


def test_a_client_that_drips_its_request_is_dropped_at_the_deadline(impatient: HealthServer) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=10) as connection:
        dripping = threading.Event()
        sender = threading.Thread(target=_drip, args=(connection, dripping))
        sender.start()
        assert receive_all(connection) == b""
        dripping.set()
        sender.join()


def _drip(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        try:
            connection.sendall(b"G")
        except OSError:
            return


def test_silent_clients_cannot_keep_others_out_for_long(impatient: HealthServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", impatient.port), timeout=10) for _ in range(20)]
    try:
        eventually(lambda: _answers(impatient))
    finally:
        for connection in silent:
            connection.close()


def _answers(server: HealthServer) -> bool:
    try:
        return ask(server, "/livez").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_client_that_goes_away_is_not_worth_an_error(
    server: HealthServer, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    health.metrics = lambda: b"x" * 50_000_000
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        connection.recv(10)
    eventually(lambda: _answers(server))
    assert caplog.records == []


def test_many_may_ask_at_the_same_time(server: HealthServer) -> None:
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: seen.append(_answers(server))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


def test_a_port_that_is_taken_is_refused_with_the_settings_to_change(server: HealthServer) -> None:
    with pytest.raises(
        HttpUnavailable, match=r"cannot listen on 127.0.0.1:\d+: .*worker.http_port"
    ) as caught:
        HealthServer("127.0.0.1", server.port, metrics=bytes, ready=lambda: Check({}), live=lambda: Check({}))
    assert isinstance(caught.value, PipelineError)


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(HttpUnavailable, match=r"cannot listen on 192\.0\.2\.1:0"):
        HealthServer("192.0.2.1", 0, metrics=bytes, ready=lambda: Check({}), live=lambda: Check({}))


def test_after_stop_nobody_listens_and_stopping_again_is_harmless(health: Health) -> None:
    server = HealthServer(
        "127.0.0.1", 0, metrics=health.metrics, ready=lambda: Check({}), live=lambda: Check({})
    )
    server.start()
    assert ask(server, "/livez").status == 200
    server.stop()
    server.stop()
    assert not _answers(server)


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    HealthServer("127.0.0.1", 0, metrics=bytes, ready=lambda: Check({}), live=lambda: Check({})).stop()


def test_it_listens_on_ipv6_where_the_machine_has_it(health: Health) -> None:
    try:
        server = HealthServer(
            "::1", 0, metrics=health.scrape, ready=lambda: Check({}), live=lambda: Check({})
        )
    except HttpUnavailable:
        with pytest.raises(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
        return
    server.start()
    try:
        connection = http.client.HTTPConnection("::1", server.port, timeout=10)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        server.stop()
