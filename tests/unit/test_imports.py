"""Imports point one way: core <- adapters, core <- runtime; `pipeline.app` joins them. Each foreign client has one home."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import pipeline

ROOT = Path(pipeline.__file__).parent

# Foreign packages with one home each: the modules (or the packages below them) that may import them.
HOMES = {
    "confluent_kafka": ("pipeline.adapters.kafka",),
    "psycopg": ("pipeline.adapters.postgres", "pipeline.embedded"),
    "psycopg_pool": ("pipeline.adapters.postgres",),
    "fastavro": ("pipeline.adapters.avro",),
    "prometheus_client": ("pipeline.adapters.prometheus",),
}
# What a part may import of this package; a part that is not named here may import anything but the command line.
ALLOWED = {
    "pipeline.errors": (),
    "pipeline.core": ("pipeline.core", "pipeline.errors"),
    "pipeline.runtime": ("pipeline.core", "pipeline.errors", "pipeline.runtime"),
    "pipeline.config": ("pipeline.core", "pipeline.errors", "pipeline.config"),
    "pipeline.logs": ("pipeline.core", "pipeline.errors"),
    "pipeline.embedded": ("pipeline.errors", "pipeline.embedded"),
}
COMMON_TO_ADAPTERS = ("pipeline.core", "pipeline.errors")
WIRING = ("pipeline.app", "pipeline.assembly", "pipeline.desk", "pipeline.holds", "pipeline.lookups")
ON_TOP = ("pipeline.cli", "pipeline.web", "pipeline.demo")

IMPURE = {
    "asyncio",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}
PURE_FOREIGN = {"pydantic"}
CLOCK = "pipeline.core.clock"


class Import(NamedTuple):
    """`module` imports `target`: a name of the standard library, a foreign package, or a module of this one."""

    module: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def imports_below(root: Path) -> list[Import]:
    """Every import statement in the package at `root`, also those inside functions."""
    found: list[Import] = []
    for path in sorted(root.rglob("*.py")):
        parts = ("pipeline", *path.relative_to(root).with_suffix("").parts)
        module = ".".join(part for part in parts if part != "__init__")
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found.extend(_imports_of(path, module, package))
    return found


def _imports_of(path: Path, module: str, package: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield Import(module, base, node.lineno)
            # `from pipeline import app` names a module, too; `from pipeline.core.job import Job` harms nothing so.
            yield from (
                Import(module, f"{base}.{alias.name}", node.lineno)
                for alias in node.names
                if base == "pipeline"
            )


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def breaches(imports: list[Import]) -> list[str]:
    return sorted({str(each) for each in imports if _is_breach(each)})


def _is_breach(each: Import) -> bool:
    if each.target.split(".")[0] == "pipeline":
        return each.target != "pipeline" and not _may_import(each.module, each.target)
    foreign = each.target.split(".")[0]
    if foreign in HOMES and not is_in(each.module, HOMES[foreign]):
        return True
    return is_in(each.module, ("pipeline.core",)) and _is_impure(each)


def _may_import(module: str, target: str) -> bool:
    if is_in(target, ("pipeline.cli",)):
        return is_in(module, ("pipeline.cli", "pipeline.__main__"))
    for part, allowed in ALLOWED.items():
        if is_in(module, (part,)):
            return is_in(target, allowed)
    if is_in(module, ("pipeline.adapters",)):
        return is_in(target, (*COMMON_TO_ADAPTERS, *_own_folder(module)))
    if is_in(module, WIRING):
        return not is_in(target, ON_TOP)
    return True


def _own_folder(module: str) -> tuple[str, ...]:
    """An adapter may import its own folder; a file beside the folders may import files of its own first word."""
    folder = ".".join(module.split(".")[:3])
    if (ROOT / "adapters" / folder.rpartition(".")[2]).is_dir():
        return (folder,)
    first_word = folder.rpartition(".")[2].split("_")[0]
    return tuple(f"pipeline.adapters.{path.stem}" for path in (ROOT / "adapters").glob(f"{first_word}*.py"))


def _is_impure(each: Import) -> bool:
    name = each.target.split(".")[0]
    if name == "time":
        return each.module != CLOCK
    return name in IMPURE or name in HOMES


def test_imports_of_the_package_point_one_way() -> None:
    assert breaches(imports_below(ROOT)) == []


def test_core_imports_nothing_foreign_but_pydantic() -> None:
    foreign = {
        name
        for each in imports_below(ROOT)
        if is_in(each.module, ("pipeline.core",))
        and (name := each.target.split(".")[0]) not in {*sys.stdlib_module_names, "pipeline"}
    }
    assert foreign <= PURE_FOREIGN


def test_the_walk_sees_every_file_of_the_package() -> None:
    seen = {each.module for each in imports_below(ROOT)}
    assert {
        "pipeline.app",
        "pipeline.core.job",
        "pipeline.runtime.worker",
        "pipeline.adapters.kafka.consumer",
    } <= seen


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/bad.py", "import threading"),
        ("core/bad.py", "from time import monotonic"),
        ("core/bad.py", "import random"),
        ("core/bad.py", "import logging.handlers"),
        ("core/bad.py", "def late() -> None:\n    import socket"),
        ("core/bad.py", "from pipeline.runtime.buffer import Buffer"),
        ("core/bad.py", "from ..runtime import buffer"),
        ("core/bad.py", "from pipeline import app"),
        ("core/bad.py", "import psycopg"),
        ("errors.py", "from pipeline.core.job import Job"),
        ("runtime/bad.py", "from pipeline.adapters.memory_store import MemoryJobStore"),
        ("runtime/bad.py", "import confluent_kafka"),
        ("runtime/bad.py", "from pipeline.config import Settings"),
        ("runtime/executors/bad.py", "from pipeline.app import Pipeline"),
        ("adapters/kafka/bad.py", "from pipeline.runtime.delivery import Delivery"),
        ("adapters/kafka/bad.py", "from pipeline.adapters.postgres.store import PostgresJobStore"),
        ("adapters/kafka/bad.py", "import psycopg"),
        ("adapters/prometheus.py", "from pipeline.adapters.memory_store import MemoryJobStore"),
        ("adapters/postgres/bad.py", "import fastavro"),
        ("config/bad.py", "from pipeline.adapters.kafka import config"),
        ("embedded/bad.py", "from pipeline.core.clock import SystemClock"),
        ("app.py", "from pipeline.cli.common import Session"),
        ("desk.py", "from pipeline.web.server import serve"),
        ("web/bad.py", "from pipeline.cli import main"),
        ("testing/bad.py", "from prometheus_client import Counter"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, source: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    assert len(breaches(imports_below(tmp_path))) == 1


def test_right_imports_are_let_through(tmp_path: Path) -> None:
    files = {
        "core/clock.py": "import time",
        "core/good.py": "import re\nfrom pydantic import BaseModel\nfrom pipeline.errors import PipelineError",
        "runtime/good.py": "import threading\nfrom pipeline.core.job import Job\nfrom pipeline.runtime import buffer",
        "adapters/kafka/good.py": "import confluent_kafka\nfrom pipeline.adapters.kafka.config import Conf\nimport pipeline",
        "app.py": "from pipeline.adapters.kafka import consumer\nfrom pipeline.runtime import worker",
        "cli/good.py": "from pipeline.cli.common import Session\nfrom pipeline.app import Pipeline",
        "web/good.py": "from pipeline.runtime.worker import Worker",
    }
    for path, source in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(source))
    assert breaches(imports_below(tmp_path)) == []
