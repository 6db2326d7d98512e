"""What a handler raised, as an outcome: every signal, every error, however badly made. Row 27 of the failure modes."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.outcome import (
    MAX_MESSAGE,
    MAX_STACK,
    Cancel,
    Cancelled,
    Failed,
    Lost,
    Reject,
    Rejected,
    Retry,
    Signal,
    Snooze,
    Snoozed,
    describe_failure,
    outcome_of,
    shorten,
)
from pipeline.errors import ClaimLost, PipelineError, StoreUnavailable


class OwnError(Exception):
    """An error of an application."""


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock(), lambda: None)


class NoText(Exception):
    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self._raised = raised

    def __str__(self) -> str:
        raise self._raised


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


class TrickyText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise OwnError("no length")


class Tricky(Exception):
    def __str__(self) -> str:
        return TrickyText("x")


def raised(error: BaseException, *, depth: int = 0) -> BaseException:
    """The error with a traceback of some depth."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    try:
        fall(depth)
    except BaseException as caught:  # noqa: BLE001 - any error is what this is for
        return caught
    raise AssertionError


def test_a_signal_says_what_shall_happen() -> None:
    failed = outcome_of(raised(Retry("busy", after=30)))
    assert isinstance(failed, Failed)
    assert (failed.retry_after, failed.permanent, failed.failure.message) == (30.0, False, "busy")
    assert outcome_of(Snooze(after=5)) == Snoozed(5.0, None)
    assert outcome_of(Snooze(until=1_900_000_000)) == Snoozed(None, 1_900_000_000.0)
    assert outcome_of(Snooze(after=0)) == Snoozed(0.0, None)
    assert outcome_of(Cancel("withdrawn")) == Cancelled("withdrawn")
    rejected = outcome_of(Reject("no such user"))
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.failure.message) == ("rejected", "no such user")


def test_a_signal_without_a_reason_has_a_text_all_the_same() -> None:
    assert str(Retry(after=2.5)) == "retry after 2.5 s"
    assert str(Snooze(after=2.5)) == "snooze after 2.5 s"
    assert str(Snooze(until=5.0)) == "snooze until 5.0"


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_signal_refuses_times_that_make_no_sense(value: float) -> None:
    with pytest.raises(ValueError, match=r"after is .*; allowed: seconds, 0 or more"):
        Retry(after=value)
    with pytest.raises(ValueError, match="after is"):
        Snooze(after=value)
    with pytest.raises(ValueError, match="until is"):
        Snooze(until=value)


def test_a_snooze_takes_one_of_two_times() -> None:
    with pytest.raises(TypeError, match="either after= or until="):
        Snooze()
    with pytest.raises(TypeError, match="either after= or until="):
        Snooze(after=1, until=2)


def test_an_error_fails_the_attempt_and_a_permanent_one_ends_the_job() -> None:
    error = raised(OwnError("broken"))
    failed = outcome_of(error, permanent=(KeyError,))
    assert isinstance(failed, Failed)
    assert (failed.permanent, failed.retry_after, failed.reason) == (False, None, "max_attempts")
    assert failed.failure.error_class == f"{__name__}.OwnError"
    assert failed.failure.message == "broken"
    assert "in fall" in failed.failure.stack
    ended = outcome_of(error, permanent=(KeyError, OwnError))
    assert isinstance(ended, Failed)
    assert ended.permanent


def test_a_signal_is_never_taken_for_a_permanent_error() -> None:
    retried = outcome_of(Retry(after=1), permanent=(Exception,))
    assert isinstance(retried, Failed)
    assert not retried.permanent


def test_outages_and_lost_claims_of_ours_are_not_the_fault_of_the_job() -> None:
    assert isinstance(outcome_of(StoreUnavailable("away"), permanent=(PipelineError,)), Snoozed)
    assert outcome_of(ClaimLost("gone")) == Lost()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_what_would_end_a_process_is_a_failure_of_the_attempt(error: BaseException) -> None:
    outcome = outcome_of(raised(error))
    assert isinstance(outcome, Failed)
    assert outcome.failure.error_class == type(error).__name__


class HalfRetry(Retry):
    """A subclass that forgot to call its parent."""

    def __init__(self) -> None:
        Exception.__init__(self, "half")


class HalfSnooze(Snooze):
    def __init__(self) -> None:
        Exception.__init__(self, "half")


class HalfCancel(Cancel):
    def __init__(self) -> None:
        Exception.__init__(self, "half")


def spoilt(signal: Signal, **values: object) -> Signal:
    vars(signal).update(values)
    return signal


@pytest.mark.parametrize(
    "signal",
    [
        HalfRetry(),
        HalfSnooze(),
        HalfCancel(),
        spoilt(Retry(after=1), after="soon"),
        spoilt(Retry(after=1), after=-5),
        spoilt(Retry(after=1), after=float("nan")),
        spoilt(Snooze(after=1), after="soon"),
        spoilt(Snooze(until=1), until=float("inf")),
        spoilt(Cancel("x"), reason=7),
    ],
)
def test_a_signal_that_was_put_together_wrongly_fails_the_attempt(signal: Signal) -> None:
    """Raised from here it would end the thread that runs handlers, and its job would be held for ever."""
    assert isinstance(outcome_of(raised(signal)), Failed)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoText(OwnError("again")), "(no text: __str__ raised OwnError)"),
        (NoText(SystemExit()), "(no text: __str__ raised SystemExit)"),
        (NoText(RecursionError()), "(no text: __str__ raised RecursionError)"),
        (NotText(), "(no text: __str__ raised TypeError)"),
        (Tricky(), "(no text: __str__ raised OwnError)"),
        (OwnError(), ""),
        (OwnError("a\x00b"), r"a\x00b"),
        (OwnError("a\udcffb"), r"a\udcffb"),
    ],
)
def test_an_error_whose_text_is_bad_is_described(error: Exception, message: str) -> None:
    assert describe_failure(raised(error)).message == message


def test_an_unpicklable_error_becomes_plain_text() -> None:
    failure = describe_failure(raised(Unpicklable()))
    assert json.loads(json.dumps(failure)) == list(failure)


def test_ten_megabytes_of_text_are_cut_in_the_middle() -> None:
    text = "start " + "x" * 10_000_000 + " end"
    message = describe_failure(OwnError(text)).message
    assert len(message) < MAX_MESSAGE + 60
    assert message.startswith("start x")
    assert message.endswith("x end")
    assert "9998010 characters left out" in message


def test_a_deep_stack_is_bounded_and_ends_where_the_error_was_raised() -> None:
    stack = describe_failure(raised(OwnError(), depth=500)).stack
    assert len(stack) < MAX_STACK + 60
    assert stack.rstrip().endswith("raise error")


def test_the_name_of_a_class_is_bounded() -> None:
    huge = type("E" * 10_000, (Exception,), {})
    assert len(describe_failure(huge()).error_class) < 260


@given(st.text(st.characters(), max_size=300), st.integers(1, 100))
def test_a_shortened_text_can_be_stored_anywhere(text: str, limit: int) -> None:
    short = shorten(text, limit)
    short.encode()  # no lone surrogates
    assert "\x00" not in short
    assert len(short) <= 6 * (limit + 50)
    if len(text) <= limit and text.isprintable():
        assert short == text


def test_a_shortened_text_can_be_shortened_again() -> None:
    once = shorten("x" * 5000, 2000)
    assert len(shorten(once, 1000)) < 1060
