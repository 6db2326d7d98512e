"""A schema registry that knows what it is told: enough of its protocol for a worker to look up an id."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["registry_of"]


@contextmanager
def registry_of(schemas: Mapping[int, str], *, port: int) -> Iterator[None]:
    """Answers on that port with these schemas, by their ids."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, number = self.path.rpartition("/")
            text = schemas.get(int(number))
            answer = {"error_code": 40403} if text is None else {"schema": text}
            body = json.dumps(answer).encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="registry")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
