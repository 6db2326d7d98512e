"""A buffer for payloads of old versions. A module of its own: mypyc cannot compile a class derived from one of C."""

from __future__ import annotations

from io import BytesIO

__all__ = ["BoundedBuffer"]


class BoundedBuffer(BytesIO):
    """Ends where its bytes do, also for what is skipped: fastavro reads over that and does not look what came.

    An array of doubles that claims to have a billion items would stall the process with six bytes (seen).
    """

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if size is not None and len(found) < size:
            raise EOFError
        return found
