"""A schema registry that speaks Confluent's protocol: which schema has which id.

The only package that speaks to one. It is asked at the start of a publisher, for ids that a worker has not met yet, and
by `pipeline schemas`; never per job.
"""

from __future__ import annotations

from pipeline.adapters.registry.client import LEVEL, Registered, RegistryClient
from pipeline.adapters.registry.http import RegistryHttp

__all__ = ["LEVEL", "Registered", "RegistryClient", "RegistryHttp"]
