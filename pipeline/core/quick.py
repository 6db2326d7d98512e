"""Making named tuples where that happens for every job.

A named tuple's own constructor is a function in Python that does nothing but this, and takes three times as long; also in native
code, where it stays interpreted. `new_tuple(Run, (delivery, outcome, started_at, ended_at))` takes all fields, defaults too, in
their order: nobody checks them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["new_tuple"]

new_tuple: Final = tuple.__new__
