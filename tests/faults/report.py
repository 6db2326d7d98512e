"""docs/reliability.md, from what was really run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.matrix import MATRIX, MISSING

__all__ = ["WITHOUT", "Result", "Results", "load_results", "save_results", "write_report"]

WITHOUT = "without "  # in the names of results of mutations


@dataclass
class Result:
    """Runs of one row, of one mutation, of the campaign, or of the load, with the same code at the same scale."""

    figures: Figures = field(default_factory=Figures)
    failures: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    runs: int = 0
    commit: str = ""
    date: str = ""
    scale: str = ""
    remarks: list[str] = field(default_factory=list)
    not_here: str = ""

    @property
    def passed(self) -> bool:
        return not self.failures


# By the number or name of what was run, the oldest first.
Results = Mapping[str, Sequence[Result]]


def load_results(path: Path) -> dict[str, list[Result]]:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    return {
        name: [Result(**{**each, "figures": Figures(**each["figures"])}) for each in found]
        for name, found in stored.items()
    }


def save_results(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: [asdict(each) for each in found] for name, found in results.items()}
    path.write_text(json.dumps(stored, indent=1))


def _together(results: Sequence[Result]) -> Result:
    """Their figures, failures and remarks as those of one."""
    whole = Result()
    for each in results:
        whole.figures.merge(each.figures)
        whole.failures += each.failures
        whole.remarks += each.remarks
        whole.runs += each.runs
        whole.not_here = each.not_here
    return whole


_HEAD = """# Reliability

Made by `make faults` (`python -m tests.faults`) from what it measured; nothing here is written by hand. Each fault is
injected for real: real Kafka and Postgres, real processes, signals and connections. While it lasts, eight tenants publish at
a steady rate, one of them half of the jobs; one job in 100 fails once, one in 400 always, one in 20 keeps its order. After
healing, everything is read once more and judged from outside: no acknowledged job lost, one effect each, order, committed
offsets that never fall and never pass an open job, the last holder alone completes, attempts and delays as told, the end of
each job told in the audit trail, the rate back, nothing left behind. `lost`, `doubled` effects and `fallen` offsets are counted
over all runs of a row. Recovery is the time from healing to the first {window:g} s (fewer at small scale) at 80 % of the rate
before the fault.

"""


def write_report(path: Path, results: Results, *, window: float) -> None:
    lines = [
        *_HEAD.format(window=window).splitlines(),
        *_runs(results),
        "",
        "| number | fault | result | figures |",
        "|---|---|---|---|",
        *(_row(number, results.get(str(number), ())) for number in MATRIX),
        "",
        *_mutations([found[-1] for name, found in results.items() if name.startswith(WITHOUT)]),
        *_apart("Random campaign", results.get("campaign", ())),
        *_apart("Load with kills", results.get("load", ())),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")


def _runs(results: Results) -> Sequence[str]:
    """Of which code, when, with which seeds and at which scale."""
    rows: dict[str, list[str]] = {}
    for name, each in [(name, each) for name, found in results.items() for each in found]:
        seeds = ", ".join(map(str, each.seeds))
        rows.setdefault(
            f"commit {each.commit}, {each.date}, {each.scale}" + (f", seeds {seeds}" if seeds else ""), []
        ).append("mutations" if name.startswith(WITHOUT) else name)
    return [f"- {run}: {', '.join(sorted(set(names), key=_order))}" for run, names in rows.items()]


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1000, name)


def _row(number: int, results: Sequence[Result]) -> str:
    text, result = MATRIX[number].text, _together(results)
    if number in MISSING:
        return f"| {number} | {text} | not here | {MISSING[number]} |"
    if not results:
        return f"| {number} | {text} | not here | not run yet |"
    if result.not_here:
        return f"| {number} | {text} | not here | {result.not_here} |"
    if result.passed:
        return f"| {number} | {text} | pass | {result.figures.text()}; {result.runs} runs |"
    failed = "; ".join(result.failures).replace("|", "/")[:300]
    return f"| {number} | {text} | fail | {failed}; {result.figures.text()} |"


def _mutations(results: Sequence[Result]) -> Sequence[str]:
    if not results:
        return []
    failures = [failure for result in results for failure in result.failures]
    verdict = "Each was missed." if not failures else "Not all were missed: " + "; ".join(failures)
    intro = f"Each protection was taken out of the running workers, and a scenario was to fail. {verdict}"
    table = [
        "| without this | row | what was found |",
        "|---|---|---|",
        *(remark for result in results for remark in result.remarks),
    ]
    return ["## Without the protections", "", intro, "", *table, ""]


def _apart(title: str, results: Sequence[Result]) -> Sequence[str]:
    if not results:
        return []
    result = _together(results)
    verdict = "Pass" if result.passed else "Fail: " + "; ".join(result.failures)[:600]
    return [f"## {title}", "", f"{verdict}. {result.figures.text()}.", "", *result.remarks, ""]
