"""What a job type refuses when it is declared."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.core.backoff import Backoff
from pipeline.core.job_type import JobType
from pipeline.errors import ConfigError


class Mail(BaseModel):
    to: str


@pytest.mark.parametrize("name", ["email.send", "a", "a1.b-c_d.e", "x" * 128])
def test_a_name_of_words_joined_by_dots_is_fine(name: str) -> None:
    assert JobType(name=name, model=Mail).name == name


@pytest.mark.parametrize(
    "name", ["", "Email", "a..b", ".a", "a.", "a-", "-a", "a b", "ä", "a/b", "../a", "x" * 129, "a\n"]
)
def test_a_name_that_is_no_directory_of_schemas_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"job type name is .*; allowed: words of a-z, 0-9"):
        JobType(name=name, model=Mail)


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_a_time_limit_must_be_above_nothing(timeout: float) -> None:
    with pytest.raises(
        ConfigError, match=r"timeout of job type 'email.send' is .*; allowed: seconds above 0, or None"
    ):
        JobType(name="email.send", model=Mail, timeout=timeout)


def test_a_queue_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"queue of job type 'email.send' is 'a\.b'; allowed"):
        JobType(name="email.send", model=Mail, queue="a.b")


def test_an_executor_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"executor of job type 'email.send' is 'fork'; allowed: thread, async, process"
    ):
        JobType(name="email.send", model=Mail, executor="fork")  # type: ignore[arg-type]


def test_a_concurrency_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"concurrency of job type 'email.send' is 0; allowed: 1 or more"):
        JobType(name="email.send", model=Mail, concurrency=0)


def test_what_is_not_given_has_a_default() -> None:
    declared: JobType[Any] = JobType(name="email.send", model=Mail)
    assert (declared.queue, declared.retry, declared.timeout, declared.permanent) == (
        "default",
        Backoff(),
        None,
        (),
    )
