"""Everything that the first start would have to fetch, and an archive that makes all later ones quicker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.embedded.files import tail
from pipeline.embedded.jars import ensure_jars
from pipeline.embedded.java import archive_in, recording_option
from pipeline.embedded.kafka import EmbeddedKafka
from pipeline.embedded.server import quiet
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["prepare"]


def prepare(log: Callable[[str], None] = quiet) -> None:
    """Fetch the jars and record the archive, unless they are there. The second part takes 10 to 30 s."""
    folder = ensure_jars(log)[0].parent
    archive = archive_in(folder)
    if archive is None or archive.exists():
        return
    log("recording how Kafka starts, so that it starts in half the time from now on")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".record-") as scratch:
        recorded = Path(scratch) / archive.name
        kafka = EmbeddedKafka(
            Path(scratch) / "kafka",
            temporary=True,
            jvm_options=[recording_option(recorded)],
            stop_timeout=180,
        )
        with kafka:
            pass
        if not recorded.exists():
            raise EmbeddedError(f"Java did not write {recorded.name}; its log ends:\n{tail(kafka.log_file)}")
        recorded.replace(archive)
