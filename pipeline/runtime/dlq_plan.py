"""What a replay would do, told from the index alone: a million letters in seconds, and not one of them is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.desk import PlanGroup
from pipeline.core.letter_facts import LetterState
from pipeline.errors import BrokerUnavailable, PipelineError, RegistryUnavailable
from pipeline.runtime.dlq_records import Targets

__all__ = ["Flow", "Plan", "make_plan"]


class Flow(NamedTuple):
    """Letters that go the same way."""

    job_type: str
    tenant: str
    target: str


@dataclass
class Plan:
    """What a replay would do.

    `flows` counts the letters that would be sent, `undecodable` those of them that no worker of today could read, and
    `flagged` why. `kept` counts those that would not be sent by why: a state of theirs, `unsettled`, `worn` (to be
    parked, as they were replayed too often), `untargeted`. `schema_problem` is set when schemas could not be looked up:
    letters after that count as decodable.
    """

    selected: int = 0
    flows: Counter[Flow] = field(default_factory=Counter)
    undecodable: Counter[Flow] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    schema_problem: str = ""

    @property
    def to_send(self) -> int:
        return self.flows.total()

    @property
    def topics(self) -> set[str]:
        return {flow.target for flow in self.flows}


def make_plan(
    groups: Sequence[PlanGroup],
    *,
    targets: Targets,
    check_schema: Callable[[str, str], object],
    parked: bool,
) -> Plan:
    """`check_schema` takes a job type and how a payload names its schema, and raises where it could not be decoded.

    `parked` letters are replayed, too.
    """
    plan = Plan()
    schemas = _Schemas(check_schema)
    wanted = {LetterState.OPEN, *([LetterState.PARKED] if parked else [])}
    for group in groups:
        plan.selected += group.letters
        target = targets.of(group.queue, group.priority, group.origin)
        if group.standing not in wanted:
            plan.kept[group.standing] += group.letters
        elif group.worn and group.standing != LetterState.PARKED:
            plan.kept["worn"] += group.letters
        elif not target:
            plan.kept["untargeted"] += group.letters
        else:
            flow = Flow(group.job_type, group.tenant, target)
            plan.flows[flow] += group.letters
            if why := schemas.problem(group, goes_home=target == group.origin):
                plan.undecodable[flow] += group.letters
                plan.flagged[why] += group.letters
    plan.schema_problem = schemas.away
    return plan


class _Schemas:
    """Whether payloads can be decoded, as far as their headers and schemas tell. Each schema is asked for once."""

    def __init__(self, check: Callable[[str, str], object]) -> None:
        self._check = check
        self._known: dict[tuple[str, str], str] = {}
        self.away = ""

    def problem(self, group: PlanGroup, *, goes_home: bool) -> str:
        """Why no worker could read these; what goes home to others is theirs to read."""
        if goes_home:
            return ""
        if group.malformed:
            return "its headers are no job's"
        if group.unreadable:
            return "died because its payload could not be decoded"
        return self._schema_problem(group.job_type, group.schema) if group.schema else ""

    def _schema_problem(self, job_type: str, schema: str) -> str:
        key = (job_type, schema)
        if key not in self._known and not self.away:
            self._known[key] = self._asked(job_type, schema)
        return self._known.get(key, "")

    def _asked(self, job_type: str, schema: str) -> str:
        try:
            self._check(job_type, schema)
        except (RegistryUnavailable, BrokerUnavailable) as error:
            self.away = str(error)  # not asked again: each try waits its time-out
        except PipelineError as error:
            return str(error)
        return ""
