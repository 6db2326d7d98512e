"""The steps that can happen in the world, for whoever chooses them: hypothesis, or plain chance."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.contract.protocol_worker import OUTCOMES
from tests.contract.protocol_world import Violation, World
from tests.unit.runtime_parts import DLQ, MAIN

__all__ = ["ENDS", "STEPS", "WHEN", "Steps", "interleave"]

WEIGHTS = {
    "take": 6, "poll": 2, "claim": 2, "end": 6, "settle": 4, "arrive": 2, "commit": 3,
    "publish": 2, "copy": 1, "replay": 2, "time": 2,
    "crash": 2, "stop": 1, "join": 1, "freeze": 3, "lease": 2, "renew": 1, "session": 2,
}  # fmt: skip
STEPS = [step for step, weight in WEIGHTS.items() for _ in range(weight)]
ENDS = ["ok", "fails", "fails", *sorted(OUTCOMES)]
# What may fail in a step, and when: before it took effect, or after, so that only the answer is lost; or it comes late.
FAULTS = {
    "claim": ["claim"],
    "take": ["claim"],
    "settle": ["settle", "write", "event"],
    "commit": ["commit", "event"],
}
WHEN = ["", "", "", "before", "after", "late"]
# How often each may happen: without bounds the mishaps leave nothing that could go wrong.
BUDGET = {
    "publish": 3,
    "copy": 2,
    "replay": 3,
    "crash": 3,
    "stop": 1,
    "join": 1,
    "freeze": 3,
    "lease": 3,
    "session": 3,
}


class Steps:
    """`happens` carries out a step; its numbers choose among what there is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.budget = dict(BUDGET)
        world.start_worker()
        world.start_worker()
        world.publish("0")

    def happens(self, step: str, number: int, *, end: str, when: str) -> None:
        if self.budget.get(step, 1) <= 0:
            return
        self.budget[step] = self.budget.get(step, 10_000) - 1
        calls = FAULTS.get(step, [""])
        with self.world.failing(calls[number % len(calls)] if when else "", when):
            self._work(step, number, end)
            self._order(step, number)
            self._befall(step, number)

    def _work(self, step: str, number: int, end: str) -> None:
        """A step of one worker: of its poll, claim, handler or settle thread."""
        workers = self.world.workers
        worker = workers[number % len(workers)]
        if step in ("take", "poll"):
            worker.poll()
        if step in ("take", "claim"):
            worker.claim(1 + number % 3)
        if step == "end" and (running := [(each, d) for each in workers for d in each.running]):
            runner, delivery = running[number % len(running)]
            runner.end(delivery, end)
        if step == "settle" and (busy := [each for each in workers if each.holding()]):
            busy[number % len(busy)].settle()
        if step == "arrive":
            worker.producer.arrive()
        if step == "commit":
            worker.commit()

    def _order(self, step: str, number: int) -> None:
        """A service publishes, the same once more too, or an operator replays a letter, once or twice."""
        records, letters = self.world.broker.records(MAIN), self.world.broker.records(DLQ)
        if step == "publish":
            self.world.publish(str(number % 2))
        if step == "copy":
            self.world.copy(records[number % len(records)])
        if step == "replay" and letters:
            for _ in range(1 + number % 2):
                self.world.replay(letters[number % len(letters)])

    def _befall(self, step: str, number: int) -> None:
        """What befalls a worker, alive or crashed."""
        world = self.world
        worker = world.workers[number % len(world.workers)]
        anyone = [*world.workers, *world.dead][number % (len(world.workers) + len(world.dead))]
        mishaps: dict[str, Callable[[], None]] = {
            "crash": lambda: world.crash(worker, session=bool(number % 3), lease=number % 3 > 1),
            "stop": lambda: world.stop(worker),
            "join": world.start_worker,
            "freeze": anyone.freeze,
            "lease": anyone.lapse,
            "session": anyone.lose_session,
            "renew": worker.renew,
            "time": lambda: world.clock.advance(11.0),
        }
        if step in mishaps:
            mishaps[step]()


def interleave(world: World, rng: random.Random, *, steps: int = 80) -> Violation | None:
    """Let steps happen by chance, then heal the world; give the first broken promise."""
    try:
        chosen = Steps(world)
        for _ in range(steps):
            chosen.happens(rng.choice(STEPS), rng.randrange(6), end=rng.choice(ENDS), when=rng.choice(WHEN))
            world.check()
        world.heal()
    except Violation as violation:
        return violation
    return None
