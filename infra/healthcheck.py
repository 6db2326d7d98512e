#!/usr/bin/env python3
"""Exit with 0 when the worker of this container says that it is ready: `healthcheck.py PORT`."""

from __future__ import annotations

import sys
from http.client import HTTPConnection


def main(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        print(response.read().decode(errors="replace"))
    except OSError as error:
        print(f"no answer on port {port}: {error}")
        return 1
    return 0 if response.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
