"""The log: lines that nothing can break, and the fast way for moves."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events import Move
from pipeline.core.state import TRANSITIONS, JobState, Trigger
from pipeline.logs import JsonFormatter, MoveLog, TextFormatter, setup_logging
from tests.unit.runtime_parts import trail_of


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


FORMATS: tuple[Literal["json", "text"], ...] = ("json", "text")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def set_up(level: str, form: Literal["json", "text"], stream: io.StringIO) -> None:
    setup_logging(level, form, stream=stream)
    root = logging.getLogger()  # the handlers of pytest would choke on what is logged here
    root.handlers[:] = [
        handler for handler in root.handlers if type(handler.formatter) in (JsonFormatter, TextFormatter)
    ]


def a_move(**changes: Any) -> Move:
    usual = Move(
        job_id="0198c2d4-0000-7000-8000-000000000001",
        job_type="email.send",
        tenant="acme",
        queue="default",
        worker="w1",
        attempt=1,
        hop=0,
        token=7,
        previous=JobState.RUNNING,
        trigger=Trigger.SUCCESS,
        state=JobState.COMPLETED,
        at=1_800_000_000.25,
        duration=0.125,
    )
    return usual._replace(**changes)


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    text = stream.getvalue()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


# --- setup_logging


def test_a_line_is_one_json_object_with_the_extra_fields(stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    logging.getLogger("a.b").warning("lost %d", 3, extra={"action": "lease_lost", "partitions": [1, 2]})
    (entry,) = entries(stream)
    assert entry.pop("ts").endswith("Z")
    assert entry == {
        "pid": os.getpid(),
        "level": "WARNING",
        "logger": "a.b",
        "action": "lease_lost",
        "message": "lost 3",
        "partitions": [1, 2],
    }


def test_control_characters_neither_start_a_line_nor_reach_the_terminal() -> None:
    nasty = 'a\nb\r\x1b[31m\u2028\x00\u202e"\\'
    for form in FORMATS:
        stream = io.StringIO()
        set_up("INFO", form, stream)
        logging.getLogger(nasty.replace("\n", "")).error(
            "x %s", nasty, extra={"tenant": nasty, "action": nasty}
        )
        line = stream.getvalue()
        assert line.count("\n") == 1
        assert not set(line[:-1]) & set("\n\r\x1b\x00\u2028\u202e")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        b"\xff",
        object(),
        {1: {2, 3}},
        {(1, 2): None},
        "\ud800",
        Unprintable(),
        10**400,
    ],
)
def test_any_value_can_be_logged(value: object, stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    logging.getLogger("x").info("m", extra={"value": value})
    assert len(entries(stream)) == 1


def test_a_value_that_holds_itself_can_be_logged(stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    value: dict[str, object] = {}
    value["self"] = value
    logging.getLogger("x").info("m", extra={"value": value})
    assert len(entries(stream)) == 1


def test_an_extra_field_cannot_take_the_place_of_ours(stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    logging.getLogger("x").info("m", extra={"level": "fake", "ts": "fake"})
    (entry,) = entries(stream)
    assert (entry["level"], entry["level_"], entry["ts_"]) == ("INFO", "fake", "fake")


def test_a_line_with_a_wrong_format_comes_out_all_the_same(stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    logging.getLogger("x").info("%d apples", "no")
    assert entries(stream)[0]["message"] == "%d apples (arguments cannot be formatted: TypeError)"


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_brings_its_stack(form: Any, stream: io.StringIO) -> None:
    set_up("INFO", form, stream)
    try:
        int("bad\x1b thing")
    except ValueError:
        logging.getLogger("x").exception("failed")
    text = stream.getvalue()
    assert "ValueError: invalid literal" in text
    assert "\x1b" not in text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_the_level_is_respected(stream: io.StringIO) -> None:
    set_up("WARNING", "json", stream)
    logging.getLogger("x").info("quiet")
    MoveLog(stream).write([trail_of(a_move())])
    assert stream.getvalue() == ""


def test_setting_up_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up("INFO", "json", first)
    set_up("INFO", "text", second)
    logging.getLogger("x").info("once", extra={"n": 1, "text": "a b"})
    assert first.getvalue() == ""
    assert second.getvalue().endswith(f' INFO    {os.getpid()} x once n=1 text="a b"\n')


def test_warnings_become_lines_too(stream: io.StringIO) -> None:
    set_up("INFO", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("old", DeprecationWarning, "f.py", 1)
    assert entries(stream)[0]["logger"] == "py.warnings"


# --- MoveLog


@pytest.fixture
def _told() -> None:
    logging.getLogger().setLevel("INFO")


@pytest.mark.usefixtures("_told")
def test_a_move_is_a_line_with_everything_about_it(stream: io.StringIO) -> None:
    MoveLog(stream).write(
        [trail_of(a_move(), a_move(duration=None, reason="rejected", error_class="ValueError"))]
    )
    done, dead = entries(stream)
    assert done == {
        "ts": "2027-01-15T08:00:00.250Z",
        "level": "INFO",
        "logger": "pipeline.moves",
        "action": "move",
        "message": "running -> completed",
        "previous": "running",
        "trigger": "success",
        "state": "completed",
        "job_id": "0198c2d4-0000-7000-8000-000000000001",
        "job_type": "email.send",
        "tenant": "acme",
        "queue": "default",
        "worker": "w1",
        "attempt": 1,
        "hop": 0,
        "token": 7,
        "duration": 0.125,
    }
    assert (dead["reason"], dead["error_class"], "duration" in dead) == ("rejected", "ValueError", False)


@pytest.mark.usefixtures("_told")
def test_every_move_of_the_table_can_be_logged(stream: io.StringIO) -> None:
    moves = [a_move(previous=s, trigger=t, state=to) for (s, t), to in TRANSITIONS.items()]
    MoveLog(stream).write([trail_of(move) for move in moves])
    written = [(entry["previous"], entry["trigger"], entry["state"]) for entry in entries(stream)]
    assert written == [(move.previous, move.trigger, move.state) for move in moves]


@given(text=st.text())
def test_text_of_any_kind_comes_back_from_a_line_as_it_was(text: str) -> None:
    logging.getLogger().setLevel("INFO")
    stream = io.StringIO()
    MoveLog(stream).write(
        [trail_of(a_move(tenant=text, job_type=text, worker=text, reason=text, error_class="E"))]
    )
    (entry,) = entries(stream)
    assert {entry[name] for name in ("tenant", "job_type", "worker", "reason")} == {text}


@pytest.mark.usefixtures("_told")
def test_a_batch_is_one_write(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr(stream, "write", writes.append)
    MoveLog(stream).write([trail_of(a_move())] * 100)
    MoveLog(stream).write([])
    assert [text.count("\n") for text in writes] == [100]


@pytest.mark.usefixtures("_told")
def test_moves_may_be_switched_off(stream: io.StringIO) -> None:
    MoveLog(stream, enabled=False).write([trail_of(a_move())])
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("_told")
def test_moves_for_people_are_lines_of_text(stream: io.StringIO) -> None:
    MoveLog(stream, format="text").write([trail_of(a_move(tenant="a\x1bb", reason="so and so"))])
    assert stream.getvalue() == (
        "2027-01-15T08:00:00.250Z INFO    pipeline.moves 0198c2d4-0000-7000-8000-000000000001 running -> completed "
        "(success) job_type=email.send tenant=a\\x1bb queue=default worker=w1 attempt=1 hop=0 token=7 duration=0.125 "
        'reason="so and so"\n'
    )


class FullDisk(io.StringIO):
    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.usefixtures("_told")
def test_a_log_that_cannot_be_written_stops_nobody_and_tells_what_was_lost() -> None:
    stream = FullDisk()
    log = MoveLog(stream)
    log.write([trail_of(a_move())] * 2)
    log.write([trail_of(a_move())])
    stream.full = False
    log.write([trail_of(a_move())])
    log.write([trail_of(a_move())])
    lost, *rest = entries(stream)
    assert (lost["action"], lost["lost"], lost["level"]) == ("lost", 3, "WARNING")
    assert [entry["action"] for entry in rest] == ["move", "move"]
