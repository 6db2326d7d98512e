"""The registry's client against servers that answer wrongly, slowly, endlessly, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.adapters.registry import RegistryClient, RegistryHttp
from pipeline.adapters.registry import http as registry_http
from pipeline.core.writer_schemas import WriterRef
from pipeline.errors import ConfigError, PayloadError, RegistryUnavailable, SchemaError

ID = WriterRef("id", b"\x00\x00\x00\x07")
Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(status: int, body: object) -> Answer:
    """Answer everything in the same way."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


class Seen:
    """The requests that came: method, path, headers and body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, Seen]]:
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.requests.append((self.command, self.path, dict(self.headers), body))
            with contextlib.suppress(OSError):
                answer(self)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the base class wants these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/base", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client(url: str, **options: object) -> RegistryClient:
    return RegistryClient(RegistryHttp(url, **{"timeout": 5.0, **options}))  # type: ignore[arg-type]


def unavailable(answer: Answer, match: str, **options: object) -> None:
    with serving(answer) as (url, _), pytest.raises(RegistryUnavailable, match=match):
        client(url, **options).find(ID)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 405, 408, 429, 500, 502, 503])
def test_a_status_that_says_nothing_of_the_question_is_an_outage(status: int) -> None:
    unavailable(plain(status, {"message": "not now"}), f"answers with status {status} not now")


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"\xff\xfe", b'{"schema": '])
def test_an_answer_that_is_no_json_is_an_outage(body: bytes) -> None:
    unavailable(plain(200, body), "is this the address of a schema registry|the answer is no JSON")


@pytest.mark.parametrize("body", [{}, [], None, "text", {"schema": 5}, {"schema": None}])
def test_an_answer_without_its_field_is_an_outage(body: object) -> None:
    unavailable(plain(200, body), "its answer has no schema")


def test_json_that_is_nested_too_deeply_is_an_outage() -> None:
    unavailable(plain(200, b"[" * 200_000), "schema registry")


def test_a_404_with_the_number_of_a_registry_is_an_answer_and_any_other_an_outage() -> None:
    with serving(plain(404, {"error_code": 40403, "message": "Schema 7 not found."})) as (url, _):
        assert client(url).find(ID) is None
        assert client(url).look_up("s", "{}") is None
        assert client(url).versions("s") == []
        assert client(url).level("s") is None
    for body in ({"status": 404}, b"<html>", {"error_code": "40403"}):
        unavailable(plain(404, body), "there is no schema registry at .*/base")


def test_nobody_there_fails_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused
        started = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="refused"):
            client(f"http://127.0.0.1:{taken.getsockname()[1]}", timeout=60.0).find(ID)
        assert time.monotonic() - started < 30


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable, match="timed out"):
            client(url, timeout=0.3).find(ID)


def test_a_server_that_sends_byte_by_byte_is_given_up() -> None:
    dripped: list[bytes] = []

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        for _ in range(200):
            request.wfile.write(b" ")
            dripped.append(b" ")
            threading.Event().wait(0.05)

    unavailable(drip, "takes too long", timeout=2.0)
    assert len(dripped) < 200, "it waited for all of them"


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "MAX_ANSWER", 100_000)

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(b" " * 10_000)

    unavailable(endless, "more than 100000 bytes")


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON"])
def test_a_schema_of_another_language_is_a_payload_error(kind: str) -> None:
    answer = plain(200, {"schema": "{}", "schemaType": kind})
    with (
        serving(answer) as (url, _),
        pytest.raises(PayloadError, match=f"schema 7 is a schema of type {kind}"),
    ):
        client(url).find(ID)


def test_a_schema_that_refers_to_others_is_a_payload_error() -> None:
    answer = plain(200, {"schema": "{}", "references": [{"name": "a", "subject": "b", "version": 1}]})
    with serving(answer) as (url, _), pytest.raises(PayloadError, match="refers to others"):
        client(url).find(ID)


def test_credentials_go_with_each_request() -> None:
    with serving(plain(200, {"schema": "{}"})) as (url, seen):
        client(url).find(ID)
        client(url, username="ann", password="hunter2").find(ID)
        client(url, token="abc").find(ID)
    sent = [headers.get("Authorization") for _, _, headers, _ in seen.requests]
    assert sent == [None, "Basic YW5uOmh1bnRlcjI=", "Bearer abc"]


def test_the_questions_are_those_of_the_protocol() -> None:
    with serving(plain(200, {"id": 7, "schema": "{}", "compatibilityLevel": "FULL_TRANSITIVE", "is_compatible": True})) as (url, seen):  # fmt: skip
        asked = client(url + "/")
        asked.find(ID)
        asked.find(WriterRef("guid", bytes(range(16))))
        asked.set_level("a/b c")
        asked.register("s", "text")
        assert asked.refusal("s", 3, "text") is None
        assert asked.look_up("s", "text") == (7, "{}")
    assert [(method, path) for method, path, _, _ in seen.requests] == [
        ("GET", "/base/schemas/ids/7"),
        ("GET", "/base/schemas/guids/00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("PUT", "/base/config/a%2Fb%20c"),
        ("GET", "/base/config/a%2Fb%20c"),
        ("POST", "/base/subjects/s/versions"),
        ("POST", "/base/compatibility/subjects/s/versions/3?verbose=true"),
        ("POST", "/base/subjects/s"),
        ("GET", "/base/schemas/ids/7"),
    ]
    assert json.loads(seen.requests[2][3]) == {"compatibility": "FULL_TRANSITIVE"}
    assert json.loads(seen.requests[4][3]) == {"schema": "text"}


def test_a_level_that_does_not_stay_as_it_was_set_is_refused() -> None:
    with (
        serving(plain(200, {"compatibilityLevel": "NONE"})) as (url, _),
        pytest.raises(SchemaError, match="subject s has the level NONE after it was set to FULL_TRANSITIVE"),
    ):
        client(url).set_level("s")


def test_a_refused_schema_is_told_with_the_reason() -> None:
    answer = plain(409, {"error_code": 409, "message": "region at /fields/12"})
    complaint = "refuses a schema of subject s: region at /fields/12"
    with serving(answer) as (url, _), pytest.raises(SchemaError, match=complaint):
        client(url).register("s", "text")
    with serving(plain(200, {"is_compatible": False, "messages": ["one", "two"]})) as (url, _):
        assert client(url).refusal("s", 1, "text") == "one; two"


def test_certificates_that_cannot_be_read_are_a_matter_of_the_settings(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pem", Path(__file__)):
        with pytest.raises(ConfigError, match=r"schema_registry\.ca_file is '.*', which cannot be used"):
            RegistryHttp("https://registry.example.test", ca_file=path)
