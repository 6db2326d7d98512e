"""However claims, runs, deaths and departures interleave: a job that kills its process takes one worker and two children.

The store is real (the twin in memory, which one suite holds to Postgres); workers are a few lines. Each run of the one job
kills its process or does not, as hypothesis likes: a job that fails now and then is the hardest to be sure of.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core.backoff import Backoff
from pipeline.core.claims import Claim, ClaimRequest, Settlement, Verdict
from pipeline.core.clock import ManualClock
from pipeline.core.decision import DeadLetter, Finish, RunLater, decide
from pipeline.core.job import Job
from pipeline.core.outcome import Crashed, Failed, Failure, Outcome, Snoozed, Succeeded
from pipeline.core.ports import WorkerInfo

JOB = Job("0198c3a2-0000-7000-8000-000000000001", "email.send", "acme", "default")
POLICY = Backoff(max_attempts=20, base=1, multiplier=1, jitter=0)
FAILURE = Failure("ProcessDied", "killed by SIGSEGV")
ENDS: list[Outcome] = [Succeeded(), Failed(FAILURE), Snoozed(1.0, None)]


class PoisonMachine(RuleBasedStateMachine):
    """One job, wherever it is: a record that waits, or a claim of the worker that has it now."""

    sticky = True  # whether the store's memory of a suspect is heeded

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryJobStore(self.clock)
        self.worker = ""
        self.started = 0
        self.claim: Claim | None = None
        self.job = JOB
        self.worker_deaths = self.child_deaths = 0
        self.over = False
        self.replace_worker()

    def replace_worker(self) -> None:
        self.started += 1
        self.worker = f"w{self.started}"
        self.store.heartbeat(WorkerInfo(self.worker, "host", 1, ("default",), 1e9))
        self.claim = None

    def die(self) -> None:
        self.store.heartbeat(WorkerInfo(self.worker, "host", 1, ("default",), 0.0))
        self.replace_worker()

    @precondition(lambda self: self.claim is None and not self.over)
    @rule(answered=st.booleans())
    def ask(self, *, answered: bool) -> None:
        """Claim the job; the answer may be lost on its way."""
        job = self.job
        source = ("jobs.default.normal", 0, job.hop)
        request = ClaimRequest(
            job.job_id, job.job_type, job.tenant, job.queue, job.attempt, job.hop, *source, 0.0
        )
        (claim,) = self.store.claim(self.worker, [request])
        assert claim.verdict is Verdict.CLAIMED
        if answered:
            self.claim = claim

    @precondition(lambda self: self.claim is not None)
    @rule(end=st.sampled_from(ENDS))
    def run_well(self, end: Outcome) -> None:
        self.settle(end)

    @precondition(lambda self: self.claim is not None)
    @rule()
    def run_and_kill(self) -> None:
        assert self.claim is not None
        if self.claim.crashes is None or (not self.sticky and not self.claim.previous):
            self.worker_deaths += 1
            self.die()
            return
        self.child_deaths += 1
        self.settle(Crashed(FAILURE, self.claim.crashes + 1))

    def settle(self, outcome: Outcome) -> None:
        assert self.claim is not None
        job = self.job
        decision = decide(job, outcome, POLICY, tiers=(1.0,), now=self.clock.time(), rng=random.Random(1))
        assert isinstance(decision, Finish | RunLater | DeadLetter)
        onward = isinstance(decision, RunLater)
        end = Settlement(
            job.job_id,
            self.claim.token,
            decision.state,
            job.attempt,
            job.hop + onward,
            self.clock.time(),
            self.clock.time(),
            crashed=isinstance(outcome, Crashed),
        )
        assert self.store.settle(self.worker, [end])[0].accepted
        self.claim = None
        if isinstance(decision, RunLater):
            self.job = job._replace(attempt=decision.attempt, hop=job.hop + 1)
        else:
            self.over = True

    @rule()
    def worker_dies_of_something_else(self) -> None:
        self.die()

    @rule()
    def worker_leaves_in_order(self) -> None:
        self.store.leave(self.worker)
        self.replace_worker()

    @invariant()
    def the_bound_holds(self) -> None:
        assert self.worker_deaths <= 1
        assert self.child_deaths <= 2


TestPoison = PoisonMachine.TestCase
TestPoison.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


def test_the_machine_notices_when_only_the_last_claim_makes_a_suspect() -> None:
    class Forgetful(PoisonMachine):
        sticky = False

    quick = settings(
        max_examples=2000, stateful_step_count=30, deadline=None, database=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Forgetful, settings=quick)
