"""Questions to a registry over HTTP, each bounded in time and in size.

Plain `http.client`: a handful of requests in the life of a process are not worth a dependency, and the retries that
ready-made clients make inside would hold up a worker for seconds.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline.errors import ConfigError, RegistryUnavailable

__all__ = ["Answer", "RegistryHttp"]

MAX_ANSWER = 8_000_000
_CHUNK = 65_536
_JSON = "application/vnd.schemaregistry.v1+json"
# What says something about the question; any other status is about the registry.
_SPEAKING = frozenset({200, 201, 404, 409, 422})


class Answer(NamedTuple):
    """`code` is the registry's own number for an error, 0 where it gives none."""

    status: int
    document: Any
    code: int

    @property
    def found(self) -> bool:
        return self.status < 400

    @property
    def message(self) -> str:
        """What the registry says of it, bounded: it comes from outside."""
        text = self.document.get("message", "") if isinstance(self.document, dict) else ""
        return str(text)[:1000]


class RegistryHttp:
    """`timeout` bounds a whole request, in seconds. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 2.0,
        username: str = "",
        password: str = "",
        token: str = "",
        ca_file: Path | None = None,
    ) -> None:
        """Raises `ConfigError` when the certificates cannot be read."""
        self.url = url.rstrip("/")
        self._parts = urlsplit(self.url)
        self._timeout = timeout
        self._headers = {"Accept": f"{_JSON}, application/json", **_authorization(username, password, token)}
        self._tls = _context(ca_file) if self._parts.scheme == "https" else None

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Raises `RegistryUnavailable` unless the answer says something about the question."""
        deadline = time.monotonic() + self._timeout
        connection = self._connect()
        try:
            answer = self._exchange(connection, method, path, body, deadline=deadline)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise RegistryUnavailable(f"schema registry {self.url}: {_describe(error)}") from error
        finally:
            connection.close()
        if answer.status not in _SPEAKING:
            raise RegistryUnavailable(
                f"schema registry {self.url} answers with status {answer.status} {answer.message}".rstrip()
            )
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(
                host, self._parts.port, timeout=self._timeout, context=self._tls
            )
        return http.client.HTTPConnection(host, self._parts.port, timeout=self._timeout)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object, *, deadline: float
    ) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": _JSON}
        connection.request(method, f"{self._parts.path}{path}", body=data, headers=headers)
        response = connection.getresponse()
        raw = _read(response, deadline)
        if response.status not in _SPEAKING:
            return Answer(response.status, _lenient(raw), 0)
        document = _lenient(raw) if response.status >= 400 else json.loads(raw)
        code = document.get("error_code") if isinstance(document, dict) else None
        return Answer(response.status, document, code if isinstance(code, int) else 0)


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body. The client's own timeout is per piece, so that one who sends byte by byte would never end."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise ValueError(f"the answer has more than {MAX_ANSWER} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    return b"".join(parts)


def _lenient(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _describe(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "the answer is no JSON: is this the address of a schema registry?"
    return str(error) or type(error).__name__


def _authorization(username: str, password: str, token: str) -> dict[str, str]:
    if token:
        return {"Authorization": f"Bearer {token}"}
    if username:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl's own errors are of this kind, too
        raise ConfigError(
            f"schema_registry.ca_file is {str(ca_file)!r}, which cannot be used: {error}"
        ) from error
