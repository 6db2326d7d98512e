"""Ten thousand retries with mixed due times in one tier, while the worker has nothing else to do: how late does each start?

Each job fails once and asks to be run again after a time of its own; its second attempt notes how late it is. Run as a program
this is the worker: `python -m bench.retries COUNT`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

from bench.jobs import TENANTS
from bench.place import Place, program, run_worker
from pipeline import Context, JobRequest, Pipeline, Retry
from pipeline.demo.jobs import SendEmail

__all__ = ["run"]

RETRIES = 10_000
# All longer than the tier of 10 s, and no longer than that of a minute.
SOONEST, LATEST = 11.0, 31.0


def run(place: Place, *, retries: int = RETRIES) -> dict[str, float]:
    figures = program(place, "bench.retries", str(retries))
    return {f"retries.{name}": value for name, value in figures.items()}


def _work(count: int) -> dict[str, float]:
    """Publish, run everything twice, and stop."""
    app = Pipeline()
    send = app.job_type("email.send", SendEmail, breaker=None)  # to fail is what they are there for
    waits = random.Random(1)
    late: list[float] = []

    @app.handler(send)
    def handle(_email: SendEmail, ctx: Context) -> None:
        now = time.time()
        if ctx.attempt == 1:
            raise Retry(after=waits.uniform(SOONEST, LATEST))
        late.append(now - ctx.job.not_before)

    worker = app.worker()

    def drive() -> None:
        email = SendEmail(to="ada@example.test", subject="Your order", body="Thank you.")
        with app.publisher() as publisher:
            result = publisher.publish_many(
                JobRequest(send, email, f"tenant-{number % TENANTS:02d}") for number in range(count)
            )
        assert not result.refused, result.refused[:3]
        while len(late) < count:
            time.sleep(0.1)
        worker.stop()

    threading.Thread(target=drive, daemon=True).start()
    run_worker(worker)
    return _figures(late)


def _figures(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)
    return {
        "early": sum(seconds < 0 for seconds in ordered),
        "late_p50_ms": ordered[len(ordered) // 2] * 1000,
        "late_p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "late_max_ms": ordered[-1] * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]))))
