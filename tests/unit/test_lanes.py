"""Where a handler runs: what its job type names, if its function can."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pipeline.core.job_type import ExecutorName, JobType
from pipeline.errors import ConfigError
from pipeline.runtime.handlers import Registry
from tests.unit.runtime_parts import Mail


def plain(_payload: Mail) -> None:
    pass


async def coroutine(_payload: Mail) -> None:
    pass


def lane_of(function: Any, executor: ExecutorName | None = None) -> str:
    registry = Registry()
    job_type = JobType(name="email.send", model=Mail, executor=executor)
    registry.declare(job_type)
    registry.handle(job_type, function)
    handler = registry.handler("email.send")
    assert handler is not None
    return handler.lane


def test_a_function_runs_where_it_belongs_by_itself() -> None:
    assert (lane_of(plain), lane_of(coroutine), lane_of(partial(plain))) == ("thread", "async", "thread")


@pytest.mark.parametrize(
    ("function", "executor"), [(plain, "thread"), (plain, "process"), (coroutine, "async")]
)
def test_or_where_its_job_type_says(function: Any, executor: ExecutorName) -> None:
    assert lane_of(function, executor) == executor


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_coroutine_runs_only_in_the_loop(executor: ExecutorName) -> None:
    with pytest.raises(
        ConfigError, match=f"is '{executor}', its handler is a coroutine function; allowed: async"
    ):
        lane_of(coroutine, executor)


def test_a_plain_function_does_not_run_in_the_loop() -> None:
    with pytest.raises(
        ConfigError, match="is 'async', its handler is a plain function; allowed: thread, process"
    ):
        lane_of(plain, "async")


def test_a_function_made_inside_of_another_cannot_be_found_by_a_child() -> None:
    def local(_payload: Mail) -> None:
        pass

    with pytest.raises(ConfigError, match=r"'process', its handler .*local is made inside of a function"):
        lane_of(local, "process")
