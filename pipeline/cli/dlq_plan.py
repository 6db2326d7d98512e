"""What a replay would do, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.cli.dlq_rows import letters_text
from pipeline.cli.text import clip, one_line, printable, table
from pipeline.runtime.dlq_plan import Plan

__all__ = ["plan_lines", "plan_problems"]

MAX_FLOWS = 40
MAX_REASONS = 10

# Why letters are left out -> how it is told, and what can be done about it.
_KEPT = {
    "replayed": "already replayed: {}, left out",
    "replaying": "in the hands of a task: {}, left out",
    "parked": "parked: {}, left out; --parked takes them, too",
    "discarded": "discarded: {}, left out",
    "completed": "completed: {}, left out",
    "cancelled": "cancelled: {}, left out",
    "copy": "copies of letters: {}, left out",
    "expired": "gone from the topic: {}, left out",
    "unsettled": "not settled yet: {}, left out",
    "worn": "replayed too often: {}, to be parked",
    "untargeted": "from nowhere that is known: {}, left out; --to names a topic",
}


def plan_lines(plan: Plan, *, executed: bool = False) -> list[str]:
    """The plan; where it is `executed` right away, what came of it is told elsewhere."""
    return list(_lines(plan, executed=executed))


def _lines(plan: Plan, *, executed: bool) -> Iterator[str]:
    if not plan.selected:
        yield "nothing selected: no dead letter fits"
        return
    if plan.flows:
        yield from _flow_table(plan)
    if executed and not plan.flows:
        yield f"replayed: 0 of {letters_text(plan.selected)} selected"
    elif not executed:
        again = "; nothing was sent, --execute does it" if plan.to_send else ""
        yield f"to replay: {plan.to_send} of {letters_text(plan.selected)} selected{again}"
    if not executed or not plan.flows:
        yield from (text.format(plan.kept[name]) for name, text in _KEPT.items() if plan.kept[name])
    yield from _undecodable(plan)


def _flow_table(plan: Plan) -> list[str]:
    shown = plan.flows.most_common(MAX_FLOWS)
    rows = [
        (
            clip(flow.job_type, 40),
            clip(flow.tenant, 30),
            printable(flow.target),
            count,
            plan.undecodable[flow],
        )
        for flow, count in shown
    ]
    lines = table(("TYPE", "TENANT", "TARGET", "LETTERS", "UNDECODABLE"), rows)
    hidden = plan.flows.total() - sum(count for _, count in shown)
    return [*lines, f"... and {letters_text(hidden)} more"] if hidden else lines


def _undecodable(plan: Plan) -> Iterator[str]:
    total = plan.undecodable.total()
    if total:
        yield f"undecodable here: {total}, replayed all the same; they die again unless the workers know better:"
        for why, count in plan.flagged.most_common(MAX_REASONS):
            yield f"  {count}: {one_line(why)}"


def plan_problems(plan: Plan, absent: Sequence[str]) -> Iterator[str]:
    """What stands in the way, or could not be looked at."""
    for topic in absent:
        yield f"topic {printable(topic)} does not exist: what goes there would fail"
    if plan.schema_problem:
        yield f"not every schema was looked up: {one_line(plan.schema_problem)}"
