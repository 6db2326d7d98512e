"""Builds the modules on the path of every job as native code, with mypyc, when a wheel is built with PIPELINE_COMPILE=1.

The source is the same: a compiled module lies beside its source and is imported in its place. Everything else, and an editable
install, stays plain Python. It needs a C compiler, and `pip --no-build-isolation` in an environment with the extra `compile`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "PIPELINE_COMPILE"


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """`modules` of its table in pyproject.toml names the modules by their paths; one that is not there ends the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = os.environ.get(SWITCH, "0")
        if asked not in ("0", "1"):
            raise ValueError(f"{SWITCH} is {asked!r}; allowed: 0 or 1")
        if version == "editable" or asked == "0":
            return
        work = Path(self.root) / "build" / "mypyc"
        for built in _compile(self.config["modules"], work):
            build_data["force_include"][str(built)] = str(built.relative_to(work / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _compile(sources: list[str], work: Path) -> list[Path]:
    from mypyc.build import mypycify  # noqa: PLC0415 - only there when it is asked for
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    extensions = mypycify(
        sources, opt_level="3", multi_file=True, target_dir=str(work), group_name="pipeline"
    )
    for extension in extensions:  # what one compiler warns of in generated code is nobody's to mend
        extension.extra_compile_args = [each for each in extension.extra_compile_args if each != "-Werror"]
    command = build_ext(Distribution({"name": "partitioned-pipeline", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    print(f"compiled {len(sources)} modules", file=sys.stderr)
    return [Path(path) for path in command.get_outputs()]
