"""Enqueueing and draining no-op jobs: one publisher, one worker process, beside bare loops over the same topic."""

from __future__ import annotations

from bench.place import Place, child

__all__ = ["run"]


def run(place: Place, *, jobs: int) -> dict[str, float]:
    """Figures of one round; every baseline reads the very records that our worker reads."""
    enqueue = child(place, "publish", count=jobs)
    bare = child(place, "bare", count=jobs)
    insert = child(place, "bare", count=jobs, insert=True)
    full = child(place, "bare", count=jobs, insert=True, look_up=True, decode=True)
    ours = child(place, "work", count=jobs)
    return {
        "enqueue.jobs_per_s": enqueue["jobs_per_s"],
        "enqueue.cpu_us_per_job": enqueue["cpu_us_per_job"],
        "bare_consume.jobs_per_s": bare["jobs_per_s"],
        "bare_insert.jobs_per_s": insert["jobs_per_s"],
        "bare_full.jobs_per_s": full["jobs_per_s"],
        "bare_full.cpu_us_per_job": full["cpu_us_per_job"],
        "noop_store.jobs_per_s": ours["jobs_per_s"],
        "noop_store.cpu_us_per_job": ours["cpu_us_per_job"],
        "noop_store.ratio": ours["jobs_per_s"] / full["jobs_per_s"],
        "noop_store.ratio_to_bare_consume": ours["jobs_per_s"] / bare["jobs_per_s"],
    }
