"""Enqueueing and draining no-op jobs: one publisher, one worker process, beside bare loops over the same topic."""

from __future__ import annotations

from bench.place import Place, child

__all__ = ["light", "run", "waiting"]

IDEAL = 10_000


def run(place: Place, *, jobs: int) -> dict[str, float]:
    """Figures of one round; every baseline reads the very records that our worker reads."""
    enqueue = child(place, "publish", count=jobs)
    bare = child(place, "bare", count=jobs)
    insert = child(place, "bare", count=jobs, insert=True)
    full = child(place, "bare", count=jobs, insert=True, look_up=True, decode=True)
    ours = child(place, "work", count=jobs)
    again = {"kafka.group": "plain"}  # another group reads the same records once more
    plain = child(place, "work", count=jobs, store=False, **again)
    batch = child(place, "work", count=jobs, store=False, handler="batch", **{"kafka.group": "batch"})
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
        "noop_plain.jobs_per_s": plain["jobs_per_s"],
        "noop_plain.cpu_us_per_job": plain["cpu_us_per_job"],
        "noop_plain.ratio": plain["jobs_per_s"] / bare["jobs_per_s"],
        "batch_plain.jobs_per_s": batch["jobs_per_s"],
        "batch_plain.cpu_us_per_job": batch["cpu_us_per_job"],
        "batch_plain.ratio": batch["jobs_per_s"] / bare["jobs_per_s"],
        "memory.rss_mb": ours["rss_mb"],
    }


def waiting(place: Place, kind: str, *, jobs: int) -> dict[str, float]:
    """Handlers that wait 10 ms in a hundred slots, `async` or `thread`: the ideal is 10,000 jobs a second."""
    child(place, "publish", count=jobs)
    slots = {"worker.concurrency": "100", "worker.async_concurrency": "100"}
    figures = child(place, "work", count=jobs, handler=f"{kind}_10ms", **slots)
    return {f"io_{kind}.jobs_per_s": figures["jobs_per_s"], f"io_{kind}.ratio": figures["jobs_per_s"] / IDEAL}


def light(place: Place) -> dict[str, float]:
    """200 jobs a second to a warm worker."""
    figures = child(place, "light", seconds=10, per_s=200)
    return {f"light.{name}": value for name, value in figures.items()}
