"""One dead letter as text: what `pipeline dlq show` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pipeline.cli.dlq_timeline import timeline_lines
from pipeline.cli.job import run_lines
from pipeline.cli.text import clip, indented, one_line, printable, when
from pipeline.core import headers as h
from pipeline.core.desk import IndexedLetter
from pipeline.core.dialects import Trouble
from pipeline.core.letters import Letter
from pipeline.desk import OpenedLetter
from pipeline.runtime.dlq import Found

__all__ = ["letter_lines"]

PREVIEW_BYTES = 512
VALUE_CHARACTERS = 300


def letter_lines(found: Found, opened: OpenedLetter, *, others: Sequence[Found]) -> list[str]:
    """Every part of a letter, one after the other."""
    letter = found.letter
    parts = [
        [*_identity(letter, others), *_state(found.known)],
        list(_payload(letter, opened)),
        ["headers", *_headers(letter)],
        _trouble("last error", letter.last),
        _trouble("first error", letter.first) if letter.first != letter.last else [],
        list(_store(opened)),
        ["timeline", *timeline_lines(letter, opened)],
    ]
    return [line for part in parts if part for line in ("", *part)][1:]


def _identity(letter: Letter, others: Sequence[Found]) -> Iterator[str]:
    job = letter.job
    yield f"letter      {letter.position} of {printable(letter.record.topic)}"
    yield f"job         {job.job_id}"
    yield f"type        {printable(job.job_type)}"
    yield f"tenant      {printable(job.tenant)}"
    yield f"reason      {clip(letter.reason, VALUE_CHARACTERS) or '-'}"
    yield f"attempts    {job.attempt} (hop {job.hop}, replays {job.replays})"
    yield f"enqueued    {when(job.enqueued_at)}"
    yield f"dead since  {when(letter.dead_at)}"
    yield f"key         {_value(letter.record.key)}"
    if letter.origin:
        yield f"written by  {letter.dialect}; came from {printable(letter.origin)}"
    if letter.problem:
        yield f"malformed   {one_line(letter.problem)}"
    if others:
        yield f"older       {', '.join(str(other.letter.position) for other in others[:20])}"


def _state(known: IndexedLetter | None) -> Iterator[str]:
    if known is not None:
        by_task = f", by task {known.task}" if known.task else ""
        yield f"state       {known.state}" + (f" since {when(known.since)}{by_task}" if known.since else "")


# --- payload


def _payload(letter: Letter, opened: OpenedLetter) -> Iterator[str]:
    value = letter.record.value
    if opened.payload is None:
        yield f"payload: {_size(value)} that cannot be decoded: {one_line(opened.undecodable)}"
        yield from _preview(value or b"")
        return
    described = opened.payload
    yield f"payload: {_size(value)}, {printable(str(described['schema']))}, fingerprint {described['fingerprint']}"
    text = json.dumps(described["payload"], indent=2, ensure_ascii=False, default=str)
    yield from indented(text, "  ")
    if opened.refused:
        yield f"refused by the job type of today: {one_line(opened.refused)}"


def _size(value: bytes | None) -> str:
    return "none" if value is None else f"{len(value)} bytes"


def _preview(value: bytes) -> list[str]:
    """The first bytes, as text where they are text."""
    start = value[:PREVIEW_BYTES]
    more = f"  ... {len(value) - PREVIEW_BYTES} bytes more" if len(value) > PREVIEW_BYTES else ""
    lines = [f"  {printable(_text(start))}"] if _text(start) else _hex_lines(start)
    return [*lines, more] if more else lines


def _text(data: bytes) -> str:
    """The text that the bytes are; empty when they are none. A character cut at the end does not matter."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode() if error.start >= max(1, len(data) - 3) else ""


def _hex_lines(data: bytes) -> list[str]:
    return [f"  {at:04x}  {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]


# --- headers and errors


def _headers(letter: Letter) -> list[str]:
    """All but the errors, which are told apart."""
    rest = [(n, v) for n, v in letter.record.headers if not n.startswith((h.FIRST, h.LAST))]
    return [f"  {printable(name)}: {_value(value)}" for name, value in rest] or ["  none"]


def _value(value: bytes | None) -> str:
    if value is None:
        return "-"
    try:
        return clip(value.decode(), VALUE_CHARACTERS)
    except UnicodeDecodeError:
        return clip(f"0x{value.hex()}", VALUE_CHARACTERS)


def _trouble(title: str, trouble: Trouble) -> list[str]:
    if not trouble.error_class and not trouble.topic:
        return []
    record = f"{printable(trouble.topic)} {trouble.partition}:{trouble.offset}"
    return [
        f"{title}, {when(trouble.at)}, at record {record}, by group {printable(trouble.group) or '-'}",
        *indented(f"{trouble.error_class}: {trouble.message}", "  "),
        *indented(trouble.stack, "    "),
    ]


# --- what the store knows


def _store(opened: OpenedLetter) -> Iterator[str]:
    if opened.store_problem:
        yield f"attempts are not shown, Postgres did not answer: {one_line(opened.store_problem)}"
    elif opened.story is None:
        yield "attempts are not shown: the store does not know this job"
    else:
        yield f"the job is {opened.story.state} now; its runs:"
        yield from run_lines(opened.story, stack=True)
