"""Replays dead letters: batch by batch from the topic, each letter once in effect, to be stopped and resumed at any point.

Letters of ours are locked in the index while they are sent, and marked in the same transaction. A process that dies
in between leaves them as they were; sent again they are records of the same hop, of which the claim rule lets one run.

Letters of others have no such rule. They are put into the task's hand first, and where their topics end is remembered:
what was in the hand of a process that died is looked for there before anything is sent again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.desk import Candidate, Outcome, Scope, Span, Step, Task, TaskKind, TaskState
from pipeline.core.headers import MAX_COUNT
from pipeline.core.job import Record
from pipeline.core.letter_facts import LetterState
from pipeline.core.letters import Letter, read_letter
from pipeline.core.ports import Delivered, JobProducer, Outgoing, Parking
from pipeline.core.selection import Position
from pipeline.errors import PayloadTooLarge, PipelineError, PublishUnknown, StoreUnavailable
from pipeline.runtime.dlq_doubt import Doubts
from pipeline.runtime.dlq_judge import Death, judged
from pipeline.runtime.dlq_pace import Pace
from pipeline.runtime.dlq_ports import LetterIndex, LetterTopics
from pipeline.runtime.dlq_records import LetterGone, Targets, outgoing, whole
from pipeline.runtime.interpreter import tuned_interpreter
from pipeline.runtime.read_ahead import ReadAhead

__all__ = ["Progress", "Remark", "Report", "Tools", "run_replay"]

BATCH_LETTERS = 2000
BATCH_BYTES = 8_000_000
READ_ACROSS = 1000  # letters between two wanted ones that are read rather than sought over
MAX_REMARKS = 10
# Three batches are in memory, each of some ten thousand headers, and none is part of a cycle. By default the collector looks
# through all of them time and again, for a third of the time that it all takes.
COLLECT_AFTER = 500_000


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a replay works with. `topics` are the DLQ topics by their queues; a letter gets `max_replays` at most."""

    index: LetterIndex
    source: LetterTopics
    parking: Parking
    topics: Mapping[str, str]
    max_replays: int
    producer: JobProducer
    targets: Targets
    pace: Pace


class Remark(NamedTuple):
    """Something to be told of one letter."""

    queue: str
    position: Position
    job_id: str
    text: str


class Progress(NamedTuple):
    """How far a replay is. `holding` says why it waits; it is empty when it does not."""

    task: int
    sent: int
    failed: int
    dealt_with: int
    wanted: int
    holding: str = ""


class Report:
    """What a replay did. `counts` are of the whole task, also of what was done before it was resumed.

    Its keys are `sent`, `failed` and those of `dlq_judge`. `wanted` are the letters that this run set out for, `dealt_with`
    those that it came to. Of failed letters only the first few are remarked on.
    """

    def __init__(self, task: Task) -> None:
        self.task = task.id
        self.state = TaskState.RUNNING
        self.counts = Counter(task.counts)
        self.failures: list[Remark] = []
        self.wanted = 0
        self.dealt_with = 0

    def failed(self, letter: Letter, text: str) -> None:
        self.counts["failed"] += 1
        if len(self.failures) < MAX_REMARKS:
            self.failures.append(Remark(letter.job.queue, letter.position, letter.job.job_id, text))

    def progress(self, holding: str = "") -> Progress:
        sent, failed = self.counts["sent"], self.counts["failed"]
        return Progress(self.task, sent, failed, self.dealt_with, self.wanted, holding)


def run_replay(tools: Tools, task: Task, *, tell: Callable[[Progress], None] = lambda _: None) -> Report:
    """Go on with a task that this process holds, until it is done or told to stop. Releases it.

    Raises what topics and index raise; the task can be resumed then, too.
    """
    run = _Run(tools, task, tell)
    try:
        with tuned_interpreter(COLLECT_AFTER):
            run.report.state = run.through()
        run.save(run.report.state)
    except PipelineError:
        with contextlib.suppress(StoreUnavailable):
            run.save(TaskState.FAILED)
        raise
    tools.index.release(task.id)
    return run.report


class _Run:
    """One run of a task, from its cursor on."""

    def __init__(self, tools: Tools, task: Task, tell: Callable[[Progress], None]) -> None:
        self._tools = tools
        self._index = tools.index
        self._pace = tools.pace
        self._task = task
        self._tell = tell
        self._doubts = Doubts(index=tools.index, source=tools.source)
        self._cursor = {queue: dict(of) for queue, of in task.cursor.items()}
        self._states = {LetterState.OPEN}
        if task.options.get("parked"):
            self._states.add(LetterState.PARKED)
        self._broken = False
        self._before: Collection[Death] = ()  # of the batch before: what came of it may not be on record yet
        self.report = Report(task)

    # --- the walk

    def through(self) -> TaskState:
        if self._doubts.settle(pace=self._pace, also=self._task.id):
            (task,) = self._index.tasks(task=self._task.id)
            self.report.counts = Counter(task.counts)
        spans = {queue: self._spans(queue, of) for queue, of in self._task.ends.items()}
        self.report.wanted = sum(span.letters for of in spans.values() for span in of)
        for queue, wanted in spans.items():
            with ReadAhead(self._letters(queue, wanted)) as batches:
                for batch in batches:
                    if not self._pace.wait(self._hold):
                        return TaskState.PAUSED
                    self._batch(queue, batch)
                    if self._broken:
                        return TaskState.FAILED
        return TaskState.DONE

    def _letters(self, queue: str, wanted: Sequence[Span]) -> Generator[list[Letter]]:
        """Those of one queue, in batches."""
        with contextlib.closing(self._tools.source.read(self._tools.topics[queue], wanted)) as records:
            for batch in _batches(records, self._pace.batch(BATCH_LETTERS)):
                yield [read_letter(record, queue=queue) for record in batch]

    def save(self, state: TaskState) -> None:
        self._index.save(self._task.id, state)

    def _scope(self, queue: str) -> Scope:
        return Scope(self._task.selection, [queue], self._states)

    def _spans(self, queue: str, ends: Mapping[int, int]) -> Sequence[Span]:
        before = self._cursor.get(queue, {})
        within = [Span(number, before.get(number, 0), end) for number, end in ends.items()]
        within = [span for span in within if span.start < span.stop]
        return self._index.spans(self._scope(queue), within, tolerance=READ_ACROSS) if within else []

    def _hold(self, why: str) -> None:
        self._tell(self.report.progress(why))

    def _batch(self, queue: str, letters: Sequence[Letter]) -> None:
        before = self.report.counts["sent"]
        theirs = [letter for letter in letters if not letter.is_ours]
        if theirs:
            self._send_theirs(queue, theirs)
        reached = {letter.record.partition: letter.record.offset + 1 for letter in letters}
        self._send_ours(queue, [letter for letter in letters if letter.is_ours], reached)
        self._pace.sent(self.report.counts["sent"] - before)
        self._tell(self.report.progress())

    # --- letters of ours, and of others

    def _send_ours(self, queue: str, letters: Sequence[Letter], reached: Mapping[int, int]) -> None:
        known = {letter.position: letter for letter in letters}
        counts, dealt_with, before = Counter(self.report.counts), self.report.dealt_with, self._before

        def work(candidates: Sequence[Candidate]) -> Step:
            # Done again from the start where Postgres had to undo it.
            self.report.counts, self.report.dealt_with, self._before = Counter(counts), dealt_with, before
            due, moved = self._judged(candidates, known)
            sent = self._send(due)
            self._cursor[queue] = {**self._cursor.get(queue, {}), **reached}
            return self._step([*moved, *sent])

        self._index.work_on(self._task.id, self._scope(queue), _job_ids(known), work)

    def _send_theirs(self, queue: str, letters: Sequence[Letter]) -> None:
        known = {letter.position: letter for letter in letters}
        self._doubts.foresee(self._task.id, {self._target(letter) for letter in letters})

        def judge(candidates: Sequence[Candidate]) -> tuple[Sequence[Position], Sequence[Outcome]]:
            due, moved = self._judged(candidates, known)
            taken.extend(due)
            return [candidate.position for candidate, _ in due], moved

        taken: list[tuple[Candidate, Letter]] = []
        self._index.take(self._task.id, self._scope(queue), _job_ids(known), judge)
        sent = self._send(taken)
        self._index.settle(self._task.id, queue, self._step(sent))

    def _judged(
        self, candidates: Sequence[Candidate], known: Mapping[Position, Letter]
    ) -> tuple[list[tuple[Candidate, Letter]], list[Outcome]]:
        """Those to be sent, and what becomes of others at once."""
        self.report.dealt_with += len(candidates)
        found = judged(
            [(candidate, known[candidate.position]) for candidate in candidates],
            # Another payload is another try.
            max_replays=MAX_COUNT if self._task.kind is TaskKind.EDIT else self._tools.max_replays,
            has_target=lambda letter: bool(self._target(letter)),
            before=self._before,
        )
        self._before = found.deaths
        self.report.counts.update(found.counts)
        return found.due, found.moved

    def _target(self, letter: Letter) -> str:
        return self._tools.targets.of(letter.job.queue, letter.job.priority, letter.origin)

    def _step(self, outcomes: Sequence[Outcome]) -> Step:
        """As it is now: what comes next may come before this one is kept."""
        return Step(outcomes, dict(self._cursor), Counter(self.report.counts))

    # --- sending

    def _send(self, due: Sequence[tuple[Candidate, Letter]]) -> list[Outcome]:
        """Send letters and count what came of it."""
        outcomes: list[Outcome] = []
        records: list[tuple[Candidate, Letter, Outgoing]] = []
        for candidate, letter in due:
            try:
                records.append((candidate, letter, self._record(letter)))
            except LetterGone as error:
                outcomes.extend(self._failed(candidate, letter, error))
        ends = self._tools.producer.send_all([record for _, _, record in records])
        self._broken = self._broken or _all_refused(ends)
        for (candidate, letter, _), end in zip(records, ends, strict=True):
            if end.source is not None:
                self.report.counts["sent"] += 1
                outcomes.append(Outcome(candidate.position, LetterState.REPLAYED, "", end.source))
            else:
                outcomes.extend(self._failed(candidate, letter, end.error))
        return outcomes

    def _record(self, letter: Letter) -> Outgoing:
        full = whole(letter, self._tools.parking)
        return outgoing(full, topic=self._target(letter), value=self._task.new_value)

    def _failed(self, candidate: Candidate, letter: Letter, error: Exception | None) -> Iterator[Outcome]:
        """It waits as before. One of another's that may have been written stays in hand, to be looked for later."""
        self.report.failed(letter, str(error))
        if isinstance(error, PublishUnknown) and not letter.is_ours:
            self._doubts.keep()
        else:
            yield Outcome(candidate.position, candidate.state, f"not sent: {error}")


def _job_ids(letters: Mapping[Position, Letter]) -> dict[Position, str]:
    return {position: letter.job.job_id for position, letter in letters.items()}


def _batches(records: Iterable[Record], most: int) -> Iterator[list[Record]]:
    """Bounded in number and in bytes."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size
        if len(batch) >= most or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _all_refused(ends: Sequence[Delivered]) -> bool:
    """Whether nothing of a batch was taken, and not for its size: then the fault is not with the letters."""
    errors = [end.error for end in ends]
    return bool(errors) and all(
        error is not None and not isinstance(error, PayloadTooLarge) for error in errors
    )
