"""Settles runs: effect -> next record acknowledged -> state moved, if the token still holds -> offset done.

A crash between any two steps gives a redelivery, never a loss. What cannot be finished now (broker away, Postgres away)
is tried again; nothing is passed over, and no next record is published twice for one run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from math import inf

from mypy_extensions import mypyc_attr

from pipeline.core.backoff import Backoff, Random, RetryPolicy
from pipeline.core.claims import Settled, Settlement
from pipeline.core.clock import Clock
from pipeline.core.decision import COMPLETED, DeadLetter, Decision, Finish, LetGo, RunLater, decide, in_place
from pipeline.core.events import Trail, trail_of_decision
from pipeline.core.metrics import Metrics
from pipeline.core.outcome import Crashed, Failed, Succeeded
from pipeline.core.ports import JobProducer, JobStore, Outgoing, Parking
from pipeline.core.quick import new_tuple
from pipeline.core.state import JobState
from pipeline.core.topics import TopicNames
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.events import EventSink
from pipeline.runtime.letters import letter_facts
from pipeline.runtime.next_records import NextRecords, Unsettled
from pipeline.runtime.onward import dead_letter, failing_since, parked_letter, retry_record

__all__ = ["Settler", "Unsettled"]

log = logging.getLogger("pipeline.settle")

_UNDECLARED = Backoff()


def settlement(run: Run, decision: Finish | RunLater | DeadLetter) -> Settlement:
    """What is written to the store for a run."""
    job = run.delivery.job
    later = decision if isinstance(decision, RunLater) else None
    return new_tuple(
        Settlement,
        (
            job.job_id,
            run.delivery.token,
            decision.state,
            job.attempt,
            job.hop + (later is not None and not later.in_place),
            run.started_at,
            run.finished_at,
            0.0 if later is None else later.due_at,
            decision.reason,
            None if isinstance(decision, Finish) else decision.failure,
            0 if later is None else later.attempt,
            isinstance(run.outcome, Crashed),
            None,
        ),
    )


def _settlement_of(item: Unsettled, decision: Finish | RunLater | DeadLetter) -> Settlement:
    write = settlement(item.run, decision)
    return write if item.letter is None else write._replace(letter=letter_facts(item))


@mypyc_attr(allow_interpreted_subclasses=True)
class Settler:
    """`settle` is called by one thread. `in_order` are the names of the job types that run in order: retried in place."""

    def __init__(
        self,
        *,
        worker_id: str,
        group: str,
        buffer: Buffer,
        store: JobStore,
        producer: JobProducer,
        names: TopicNames,
        tiers: Sequence[float],
        policy_of: Callable[[str], RetryPolicy | None],
        clock: Clock,
        rng: Random,
        metrics: Metrics,
        events: EventSink,
        held_recheck: float,
        in_order: Collection[str] = (),
        parking: Parking | None = None,
        on_arrival: Callable[[], None] = lambda: None,
        longest_wait: float = inf,
        kept: float = inf,
        doubt: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Seconds: no record waits longer than `longest_wait` in a retry topic, and main topics keep one for `kept`."""
        self._longest_wait = longest_wait
        self._kept = kept
        self._in_order = frozenset(in_order)
        self._worker_id = worker_id
        self._group = group
        self._buffer = buffer
        self._store = store
        self.next_records = NextRecords(
            producer=producer,
            letter_of=lambda delivery, decision: parked_letter(self._letter(delivery, decision)),
            parking=parking,
            on_arrival=on_arrival,
        )
        self._names = names
        self._tiers = tiers
        self._policy_of = policy_of
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._events = events
        self._held_recheck = held_recheck
        self._doubt = doubt

    def decide(self, run: Run) -> Unsettled:
        """Decide once what follows from a run; the decision stays the same however often settling is tried."""
        if isinstance(run.outcome, Succeeded):  # nearly all of them
            return Unsettled(run, COMPLETED, None)
        delivery, job = run.delivery, run.delivery.job
        policy = self._policy_of(job.job_type) or _UNDECLARED
        if isinstance(run.outcome, Failed | Crashed) and not delivery.failing_since:
            delivery.failing_since = failing_since(delivery.record) or run.started_at
        decision = decide(
            job,
            run.outcome,
            policy,
            tiers=self._tiers,
            now=run.finished_at + self._doubt(),  # or the wait could end early by a clock that knows better
            rng=self._rng,
            failing_since=delivery.failing_since or None,
            longest_wait=inf if job.job_type in self._in_order else self._longest_wait,
        )
        if isinstance(decision, RunLater) and job.job_type in self._in_order:
            decision = in_place(
                decision,
                written_at=delivery.record.timestamp,
                kept=self._kept,
                now=run.finished_at,
                tiers=self._tiers,
            )
        return Unsettled(run, decision, self._next_record(delivery, decision))

    def _next_record(self, delivery: Delivery, decision: Decision) -> Outgoing | None:
        if isinstance(decision, RunLater) and not decision.in_place:
            topic = self._names.retry(delivery.job.queue, decision.tier)
            return retry_record(delivery, decision, topic=topic, group=self._group, now=self._clock.time())
        return self._letter(delivery, decision) if isinstance(decision, DeadLetter) else None

    def _letter(self, delivery: Delivery, decision: DeadLetter) -> Outgoing:
        topic = self._names.dlq(delivery.job.queue)
        return dead_letter(delivery, decision, topic=topic, group=self._group, now=self._clock.time())

    def settle(self, batch: Sequence[Unsettled]) -> list[Unsettled]:
        """Settle what can be settled; give back what must be tried again. Raises `StoreUnavailable`.

        A run whose next record is on its way is neither: `next_records.arrived` gives it when that has ended.
        """
        ready, stuck = self._publish_next(batch)
        claimed: list[Unsettled] = []
        writes: list[Settlement] = []
        accepted: list[
            Unsettled
        ] = []  # a run without a token has nothing to write: its job was granted without the store
        let_go: list[Unsettled] = []
        for item in ready:
            decision = item.decision
            if isinstance(decision, LetGo):
                let_go.append(item)
            elif item.run.delivery.token:
                claimed.append(item)
                writes.append(_settlement_of(item, decision))
            else:
                accepted.append(item)
        if writes:
            answers = self._store.settle(self._worker_id, writes)
            for item, settled in zip(claimed, answers, strict=True):
                if settled.accepted:
                    accepted.append(item)
                else:
                    let_go.append(item)
                    self._log_refused(item, settled)
        if accepted:
            self._finish(accepted)
        self._let_go(let_go)
        return stuck

    def _publish_next(self, batch: Sequence[Unsettled]) -> tuple[list[Unsettled], list[Unsettled]]:
        return self.next_records.write(batch)

    def _finish(self, accepted: Sequence[Unsettled]) -> None:
        self._events.settled([self._trail(item) for item in accepted])
        self._count(accepted)
        self._give_back(accepted)

    def _give_back(self, items: Sequence[Unsettled]) -> None:
        done: list[Delivery] = []
        again: list[tuple[Delivery, int, float]] = []
        for item in items:
            decision = item.decision
            if isinstance(decision, RunLater) and decision.in_place:
                again.append((item.run.delivery, decision.attempt, decision.due_at))
            else:
                done.append(item.run.delivery)
        if done:
            self._buffer.done(done)
        if again:
            self._buffer.wait_in_place(again)

    def _let_go(self, items: Sequence[Unsettled]) -> None:
        """Another worker holds the job, or finished it. The record is judged again: it ends as a duplicate."""
        for item in items:
            job = item.run.delivery.job
            self._metrics.fenced(job.job_type, job.queue, 1)
        if items:
            until = self._clock.time() + self._held_recheck
            self._buffer.hold([item.run.delivery for item in items], until)

    def _trail(self, item: Unsettled) -> Trail:
        run, decision = item.run, item.decision
        assert not isinstance(decision, LetGo)
        return trail_of_decision(
            run.delivery.job,
            decision,
            worker=self._worker_id,
            token=run.delivery.token,
            started_at=run.started_at,
            finished_at=run.finished_at,
        )

    def _count(self, accepted: Sequence[Unsettled]) -> None:
        groups: dict[tuple[str, str, JobState, str], list[float]] = {}
        for item in accepted:
            job, run, decision = item.run.delivery.job, item.run, item.decision
            assert not isinstance(decision, LetGo)
            why = decision.reason if isinstance(decision, DeadLetter) else ""
            if isinstance(decision, RunLater) and decision.failure is None:
                why = "snoozed"
            key = (job.job_type, job.queue, decision.state, why)
            groups.setdefault(key, []).append(max(0.0, run.finished_at - run.started_at))
            if isinstance(run.outcome, Crashed):
                self._metrics.crashed(job.job_type, job.queue, 1)
        for (job_type, queue, state, why), seconds in groups.items():
            self._metrics.observe_processing(job_type, queue, seconds, outcome=state.value)
            self._count_ends(job_type, queue, state, why, n=len(seconds))

    def _count_ends(self, job_type: str, queue: str, state: JobState, why: str, *, n: int) -> None:
        metrics = self._metrics
        if state is JobState.COMPLETED:
            metrics.completed(job_type, queue, n)
        elif state is JobState.CANCELLED:
            metrics.cancelled(job_type, queue, n)
        elif state is JobState.DEAD:
            metrics.failed(job_type, queue, n)
            metrics.dead(job_type, queue, n, outcome=why)
        elif why == "snoozed":
            metrics.snoozed(job_type, queue, n)
        else:
            metrics.failed(job_type, queue, n)
            metrics.retried(job_type, queue, n)

    def _log_refused(self, item: Unsettled, settled: Settled) -> None:
        job = item.run.delivery.job
        log.warning(
            "settle refused: the claim has passed to another worker",
            extra={
                "action": "settle_refused",
                "job_id": job.job_id,
                "job_type": job.job_type,
                "token": item.run.delivery.token,
                "current_token": settled.current_token,
                "decision": type(item.decision).__name__,
            },
        )
