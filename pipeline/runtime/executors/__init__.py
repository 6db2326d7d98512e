"""Run handlers: a pool of threads, or one asyncio loop. Both take batches and give runs back one by one, at once.

How many jobs an executor takes ahead of its free slots follows from how long handlers take: enough to bridge the round
trip of the next claim (`AHEAD_SECONDS` of work), so that short jobs are claimed in large batches and long jobs just
before they start.
"""

from __future__ import annotations

from pipeline.runtime.executors.aio import AsyncExecutor
from pipeline.runtime.executors.base import Executor, Pace
from pipeline.runtime.executors.threads import ThreadExecutor

__all__ = ["AsyncExecutor", "Executor", "Pace", "ThreadExecutor"]
