"""A worker that cannot start leaves nothing open."""

from __future__ import annotations

import gc
import threading

import pytest

from pipeline import Pipeline, load_settings
from pipeline.errors import StoreUnavailable


def test_a_worker_whose_store_is_away_says_so_and_closes_what_it_had_opened() -> None:
    app = Pipeline(
        load_settings(
            {"postgres.dsn": "postgresql://nobody@127.0.0.1:1/none", "kafka.bootstrap_servers": "127.0.0.1:1"}
        )
    )
    before = set(threading.enumerate())
    worker = app.worker()
    with pytest.raises(StoreUnavailable):
        worker.run()
    del worker
    gc.collect()  # whatever is left open is told by a warning, and a warning is an error
    assert set(threading.enumerate()) <= before
