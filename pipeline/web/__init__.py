"""The HTTP side of a process: health and metrics."""

from __future__ import annotations

from pipeline.web.health import Check, HealthServer, HttpUnavailable

__all__ = ["Check", "HealthServer", "HttpUnavailable"]
