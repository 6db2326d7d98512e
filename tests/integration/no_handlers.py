"""An application that declares no job and handles none."""

from __future__ import annotations

from pipeline import Pipeline

__all__ = ["app"]

app = Pipeline()
