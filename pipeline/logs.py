"""The log: one JSON object a line on standard error, or lines for people. Nothing that a job carries can break a line.

Values are escaped, whoever wrote them: a tenant, an error text or a job type with control characters in it can neither
start a line of its own nor steer a terminal.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Literal, TextIO

from pipeline.core.events import Move, Trail
from pipeline.core.state import TRANSITIONS

__all__ = ["JsonFormatter", "MoveLog", "TextFormatter", "setup_logging"]

Format = Literal["json", "text"]
MOVES = "pipeline.moves"
MAX_DEPTH = 6
# What a record has by itself; everything else was given as `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "action"}


def setup_logging(level: str, format: Format, *, stream: TextIO | None = None) -> None:  # noqa: A002 - its setting's name
    """Send all logging of this process to `stream` (standard error) in one format. Calling it again replaces that."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
    ours = _Handler(stream or sys.stderr)
    ours.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root.addHandler(ours)
    root.setLevel(level)
    logging.captureWarnings(capture=True)  # else they would stand between the lines as bare text


class _Handler(logging.StreamHandler[TextIO]):
    """A handler that is known to be ours."""


class JsonFormatter(logging.Formatter):
    """ts, pid, level, logger, action, message, then the extra fields, then the error with its stack."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _timestamp(record.created),
            "pid": record.process,
            "level": record.levelname,
            "logger": record.name,
            "action": str(getattr(record, "action", "log")),
            "message": _message(record),
        }
        for name, value in _extras(record):
            entry[name if name not in entry else f"{name}_"] = _plain(value, MAX_DEPTH)
        stack = _stack(self, record)
        if stack:
            entry["stack"] = stack
        return json.dumps(entry, separators=(",", ":"), allow_nan=False)


class TextFormatter(logging.Formatter):
    """One line for people; only a stack stands on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name}={_shown(value)}" for name, value in _extras(record)]
        if hasattr(record, "action"):
            fields.insert(0, f"action={_shown(record.action)}")
        parts = [
            _timestamp(record.created),
            f"{record.levelname:<7}",
            str(record.process),
            _escape(record.name),
            _escape(_message(record)),
            *fields,
        ]
        stack = [f"\n    {_escape(line)}" for line in _stack(self, record).splitlines()]
        return " ".join(parts) + "".join(stack)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a wrong format or a foreign __str__: the line must come out anyway
        return f"{record.msg!s} (arguments cannot be formatted: {type(error).__name__})"


def _extras(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _plain(value: object, depth: int) -> object:
    """What JSON can hold; anything else as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    if depth and isinstance(value, Mapping):
        return {_text(key): _plain(inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth - 1) for inner in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"(no text: __str__ raised {type(error).__name__})"


def _shown(value: object) -> str:
    text = _text(value)
    return _escape(text) if text and " " not in text and '"' not in text else json.dumps(text)


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _timestamp(at: float) -> str:
    second = int(at)
    return _second(second) + _MILLIS[int((at - second) * 1000)]


_MILLIS = [f".{millis:03d}Z" for millis in range(1000)]


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "0000-00-00T00:00:00"


class MoveLog:
    """Writes a line for each move of a job: one write for a batch, and no work in `logging` for each line.

    The lines belong to the logger `pipeline.moves` at level INFO: raising that logger's level silences them. Safe to call
    from several threads. A stream that fails stops no worker: the lines are counted, and once it works again the first
    line says how many were lost.
    """

    def __init__(
        self,
        stream: TextIO,
        enabled: bool = True,  # noqa: FBT001, FBT002 - a setting, handed on as it is
        *,
        format: Format = "json",  # noqa: A002 - its setting's name
    ) -> None:
        self._stream = stream
        self._enabled = enabled
        self._line = _json_line if format == "json" else _text_line
        self._format = format
        self._logger = logging.getLogger(MOVES)
        self._lost = 0

    def write(self, trails: Sequence[Trail]) -> None:
        if not self._enabled or not trails or not self._logger.isEnabledFor(logging.INFO):
            return
        moves = [move for trail in trails for move in trail.moves()]
        lines = [self._line(move) for move in moves]
        if self._lost:
            lines.insert(0, self._loss(moves[0].at))
        try:
            self._stream.write("".join(lines))
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe
            self._lost += len(moves)
        else:
            self._lost = 0

    def _loss(self, at: float) -> str:
        message = f"{self._lost} lines about moves were lost: the log could not be written"
        record = logging.makeLogRecord(
            {
                "name": MOVES,
                "levelname": "WARNING",
                "created": at,
                "msg": message,
                "action": "lost",
                "lost": self._lost,
            }
        )
        formatter = JsonFormatter() if self._format == "json" else TextFormatter()
        return formatter.format(record) + "\n"


# Looked up by the two names joined: to hash an enum costs a call into Python.
_STEPS = {
    previous.value + trigger.value: (
        f'"message":"{previous.value} -> {state.value}","previous":"{previous.value}",'
        f'"trigger":"{trigger.value}","state":"{state.value}"'
    )
    for (previous, trigger), state in TRANSITIONS.items()
}


@lru_cache(maxsize=4096)
def _who(job_type: str, tenant: str, queue: str, worker: str) -> str:
    return f'"job_type":{quoted(job_type)},"tenant":{quoted(tenant)},"queue":{quoted(queue)},"worker":{quoted(worker)}'


def _json_line(move: Move) -> str:
    # Written by hand because there are several for each job: the general encoder takes four times as long.
    job, kind, tenant, queue, worker, attempt, hop, token, previous, trigger, _, at, duration, why, error = (
        move
    )
    end = f',"duration":{duration:.6f}' if duration is not None else ""
    if why or error:
        end += f',"reason":{quoted(why)},"error_class":{quoted(error)}'
    return (
        f'{{"ts":"{_timestamp(at)}","level":"INFO","logger":"pipeline.moves","action":"move",'
        f'{_STEPS[previous + trigger]},"job_id":{quoted(job)},{_who(kind, tenant, queue, worker)},'
        f'"attempt":{attempt},"hop":{hop},"token":{token}{end}}}\n'
    )


def _text_line(move: Move) -> str:
    told_first = ("job_id", "previous", "trigger", "state", "at")
    fields = [(name, value) for name, value in move._asdict().items() if name not in told_first]
    shown = " ".join(f"{name}={_shown(value)}" for name, value in fields if value not in ("", None))
    step = f"{move.previous.value} -> {move.state.value}"
    return f"{_timestamp(move.at)} INFO    {MOVES} {_escape(move.job_id)} {step} ({move.trigger.value}) {shown}\n"
