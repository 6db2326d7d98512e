"""The HTTP side of a worker process that was started with `worker__http_port=0`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import defaultdict
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.processes import WorkerProcess
from tests.harness.waiting import wait_until

__all__ = ["Answer", "get", "scrape", "scrape_text"]


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def get(worker: WorkerProcess, path: str) -> Answer:
    """Ask a worker. Waits until it has told in its log on which port it listens."""
    wait_until(lambda: worker.said("http"), "the worker listens", context=worker.tail)
    port = worker.said("http")[0]["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode())


def scrape(worker: WorkerProcess) -> dict[str, float]:
    """Each sample of /metrics by its name, summed over its labels. One that is not there yet is 0."""
    return scrape_text(get(worker, "/metrics").body)


def scrape_text(text: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return sums
