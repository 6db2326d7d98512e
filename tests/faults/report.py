"""docs/reliability.md, from what was really run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.matrix import MATRIX, MISSING

__all__ = ["WITHOUT", "Result", "load_results", "save_results", "write_report"]

WITHOUT = "without "  # in the names of results of mutations


@dataclass
class Result:
    """All runs of one row, of one mutation, of the campaign, or of the load."""

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


def load_results(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    return {name: Result(**{**each, "figures": Figures(**each["figures"])}) for name, each in stored.items()}


def save_results(path: Path, results: Mapping[str, Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: asdict(each) for name, each in results.items()}, indent=1))


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


def write_report(path: Path, results: Mapping[str, Result], *, window: float) -> None:
    lines = [
        *_HEAD.format(window=window).splitlines(),
        *_runs(results),
        "",
        "| number | fault | result | figures |",
        "|---|---|---|---|",
        *(_row(number, results.get(str(number))) for number in MATRIX),
        "",
        *_mutations([each for name, each in results.items() if name.startswith(WITHOUT)]),
        *_apart("Random campaign", results.get("campaign")),
        *_apart("Load with kills", results.get("load")),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")


def _runs(results: Mapping[str, Result]) -> Sequence[str]:
    """Of which code, when, with which seeds and at which scale."""
    rows: dict[str, list[str]] = {}
    for name, each in results.items():
        seeds = ", ".join(map(str, each.seeds))
        rows.setdefault(
            f"commit {each.commit}, {each.date}, {each.scale}" + (f", seeds {seeds}" if seeds else ""), []
        ).append("mutations" if name.startswith(WITHOUT) else name)
    return [f"- {run}: {', '.join(sorted(set(names), key=_order))}" for run, names in rows.items()]


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1000, name)


def _row(number: int, result: Result | None) -> str:
    text = MATRIX[number].text
    if number in MISSING:
        return f"| {number} | {text} | not here | {MISSING[number]} |"
    if result is None:
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


def _apart(title: str, result: Result | None) -> Sequence[str]:
    if result is None:
        return []
    verdict = "Pass" if result.passed else "Fail: " + "; ".join(result.failures)[:600]
    return [f"## {title}", "", f"{verdict}. {result.figures.text()}.", "", *result.remarks, ""]
