"""A worker process of the protocol world: the real parts, and one call for each step of its threads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.core.backoff import Backoff
from pipeline.core.events import Trail
from pipeline.core.job_type import JobType
from pipeline.core.metrics import NoMetrics
from pipeline.core.outcome import Cancelled, Failed, Failure, Outcome, Rejected, Snoozed, Succeeded
from pipeline.core.ports import WorkerInfo
from pipeline.core.topics import TopicNames
from pipeline.errors import StoreUnavailable
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.events import EventSink
from pipeline.runtime.held import Limits
from pipeline.runtime.intake import Intake, IntakeSettings
from pipeline.runtime.settler import Settler, Unsettled
from tests.contract.protocol_twins import EVENTS, LooseConsumer, PromptEvents, ShakyProducer, Store
from tests.unit.runtime_parts import MAIN, RETRY, JsonCodec, Mail

if TYPE_CHECKING:
    from tests.contract.protocol_world import World

__all__ = ["GROUP", "MAIL", "OUTCOMES", "Parts", "Worker"]

GROUP = "workers"
LEASE = 1e9  # ends only when the world says so
MAX_ATTEMPTS = 2
MAIL: JobType[Mail] = JobType(
    name="email.send", model=Mail, retry=Backoff(max_attempts=MAX_ATTEMPTS, base=10, cap=10, jitter=0)
)
BROKEN = Failure("Broken", "it broke")
OUTCOMES: dict[str, Outcome] = {
    "ok": Succeeded(),
    "fails": Failed(BROKEN),
    "rejects": Rejected(BROKEN),
    "snoozes": Snoozed(5.0, None),
    "cancels": Cancelled(""),
}


@dataclass(frozen=True)
class Parts:
    """What a worker is made of: the real thing, or one with a protection taken out."""

    buffer: type[Buffer] = Buffer
    intake: type[Intake] = Intake
    settler: type[Settler] = Settler
    events: type[EventSink] = PromptEvents
    store: Callable[[Store], Store] = lambda store: store


class Worker:
    """A worker process: the real parts, one call for each step of its threads."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive_in_store = False
        self.running: list[Delivery] = []
        self.ended: list[Run] = []
        self.pending: list[Unsettled] = []
        self.consumer = LooseConsumer(world.broker.consumer(GROUP), world.faults)
        self.buffer = world.parts.buffer(
            BufferSettings(
                lanes=("thread",),
                lane_of=lambda _: "thread",
                is_retry=lambda topic: topic == RETRY,
                in_order=world.in_order,
            )
        )
        self.producer = ShakyProducer(world.broker.producer(), world.faults)
        self.events = world.parts.events(
            producer=self.producer, topic=EVENTS, encode=_encode_moves, write_log=lambda _moves: None
        )
        self.intake = world.parts.intake(
            consumer=self.consumer,
            buffer=self.buffer,
            settings=IntakeSettings(
                3, commit_interval=5.0, revoke_timeout=0, limits=Limits(4, 1_000_000_000, 6)
            ),
            queue_of=lambda _topic: "default",
            is_retry=lambda topic: topic == RETRY,
            clock=world.clock,
            events=self.events,
        )
        shared: dict[str, Any] = {
            "worker_id": name,
            "buffer": self.buffer,
            "store": world.store,
            "clock": world.clock,
            "metrics": NoMetrics(),
            "events": self.events,
            "held_recheck": 5.0,
        }
        self.claimer = Claimer(
            **shared, codec=JsonCodec(), registry=world.registry, on_runs=self.ended.extend
        )
        self.settler = world.parts.settler(
            **shared,
            group=GROUP,
            producer=self.producer,
            names=TopicNames(),
            tiers=(10.0,),
            policy_of=lambda _job_type: MAIL.retry,
            rng=random.Random(0),
            in_order=world.in_order,
        )
        self.renew()
        self.consumer.subscribe([MAIN, RETRY], self.intake)

    def poll(self) -> int:
        return self.intake.step()

    def claim(self, limit: int) -> None:
        taken = self.buffer.take("thread", limit, self.world.clock.time())
        if not taken:
            return
        try:
            self.running += self.claimer.claim(taken)
        except StoreUnavailable:
            return

    def end(self, delivery: Delivery, how: str) -> None:
        self.running.remove(delivery)
        now = self.world.clock.time()
        self.ended.append(Run(delivery, OUTCOMES[how], now, now))

    def settle(self) -> None:
        """As the settle thread does: what is on its way comes back by itself."""
        self.pending += [self.settler.decide(run) for run in self.ended]
        self.pending += self.settler.next_records.arrived()
        self.ended.clear()
        try:
            self.pending = self.settler.settle(self.pending)
        except StoreUnavailable:
            self.pending = [item for item in self.pending if not item.on_the_way]

    def commit(self) -> None:
        self.intake.commit()

    def lapse(self) -> None:
        """Its lease ends, as when it was frozen or cut off; it may go on doing things all the same."""
        self.alive_in_store = False
        self.world.rows.heartbeat(self._info(0.0))

    def renew(self) -> None:
        self.alive_in_store = True
        self.world.rows.heartbeat(self._info(LEASE))

    def _info(self, lease: float) -> WorkerInfo:
        return WorkerInfo(self.name, "host", 1, ("default",), lease)

    def lose_session(self) -> None:
        """The group goes on without it; it learns so at its next poll."""
        self.world.broker.expire(self.consumer.inner)

    def freeze(self) -> None:
        """For long enough to lose both; when it goes on it knows of neither."""
        self.lapse()
        self.lose_session()

    def leave(self) -> None:
        self.intake.drain()
        self.buffer.hand_back(self.running)
        self.running.clear()
        self.settle()
        self.intake.commit()
        self.buffer.hand_back_all()
        self.alive_in_store = False
        self.world.rows.leave(self.name)
        self.consumer.close()

    def work_off(self) -> None:
        for _ in range(20):
            self.producer.arrive()
            fetched = self.poll()
            self.claim(100)
            for delivery in list(self.running):
                self.end(delivery, "ok")
            self.settle()
            self.commit()
            if not fetched and not self.holding():
                return

    def holding(self) -> list[Delivery]:
        """What it runs, or ran and has not settled."""
        return list(self.buffer._in_flight.values())


def _encode_moves(trail: Trail) -> bytes:
    return " ".join(move.state.value for move in trail.moves()).encode()
