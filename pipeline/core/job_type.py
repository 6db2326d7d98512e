"""What is declared once per kind of job, and shared by publishers and workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import BaseModel

from pipeline.core.backoff import Backoff, RetryPolicy
from pipeline.core.breaker import Breaker
from pipeline.core.topics import check_name
from pipeline.errors import ConfigError

__all__ = ["ExecutorName", "JobType", "Order", "Payload", "Upcaster"]

Order: TypeAlias = Literal["unordered", "key"]
Upcaster: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
ExecutorName: TypeAlias = Literal["thread", "async", "process"]
Payload = TypeVar("Payload", bound=BaseModel)
_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*")


@dataclass(frozen=True, kw_only=True)
class JobType(Generic[Payload]):
    """A kind of job.

    With `order` "key" one job of a key runs at a time, in the order published: a failed one is retried in place and holds back
    those behind it until it has ended, while other keys go on. The key is the tenant with the publisher's ordering key, if any.
    `name` also names its directory of schemas. `timeout` is in seconds, None for no limit. `permanent` are error
    classes that end a job at once, whatever attempts are left. `upcasters` are functions by schema version: each is given
    what a payload of that version says, and returns what the next version says, where Avro's own rules cannot tell.
    `executor` says where its handler runs: in a `thread`, in the `async` loop or in a `process` of its own; by default a
    plain function in a thread, a coroutine function in the loop. At most `concurrency` of its jobs run at the same time in
    one worker process; None for as many as there are slots. `breaker` says when its jobs wait because what they need is broken;
    None for never. Without `deduplicate` the store is not asked: the fastest way,
    for jobs that may as well run twice; such jobs have no row, no story, no `ctx.transaction()`, and no order by key.
    Raises `ConfigError` on values that make no sense.
    """

    name: str
    model: type[Payload]
    queue: str = "default"
    retry: RetryPolicy = field(default_factory=Backoff)
    timeout: float | None = None
    permanent: tuple[type[BaseException], ...] = ()
    order: Order = "unordered"
    executor: ExecutorName | None = None
    concurrency: int | None = None
    breaker: Breaker | None = field(default_factory=Breaker)
    deduplicate: bool = True
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > 128:
            raise ConfigError(
                f"job type name is {self.name!r}; allowed: words of a-z, 0-9, '_' and '-', joined by dots, at most 128"
            )
        check_name(f"queue of job type {self.name!r}", self.queue)
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise ConfigError(
                f"timeout of job type {self.name!r} is {self.timeout}; allowed: seconds above 0, or None"
            )
        if self.order not in get_args(Order):
            raise ConfigError(
                f"order of job type {self.name!r} is {self.order!r}; allowed: {', '.join(get_args(Order))}"
            )
        if self.executor is not None and self.executor not in get_args(ExecutorName):
            raise ConfigError(
                f"executor of job type {self.name!r} is {self.executor!r}; allowed: {', '.join(get_args(ExecutorName))}, or None"
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                f"concurrency of job type {self.name!r} is {self.concurrency}; allowed: 1 or more, or None"
            )
        if not self.deduplicate and self.order == "key":
            raise ConfigError(
                f"deduplicate of job type {self.name!r} is False; allowed with order 'key': True, "
                "since the store remembers whose turn it is"
            )
