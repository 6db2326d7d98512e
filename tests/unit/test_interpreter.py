"""The interpreter's settings for pipeline work are made for a while, and taken back whatever happens."""

from __future__ import annotations

import gc
import sys

import pytest

from pipeline import tuned_interpreter


class Broken(Exception):
    pass


def test_threads_keep_the_interpreter_longer_and_collections_are_fewer() -> None:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    with tuned_interpreter():
        assert sys.getswitchinterval() > interval
        assert gc.get_threshold()[0] > thresholds[0]
        assert gc.get_freeze_count() > 0
        assert gc.isenabled(), "cycles that handlers leave behind are still found"
    assert sys.getswitchinterval() == interval
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


def test_an_error_takes_them_back_too() -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    with pytest.raises(Broken), tuned_interpreter():
        raise Broken
    assert (sys.getswitchinterval(), gc.get_threshold()) == before


def test_how_many_new_objects_make_it_look_can_be_said() -> None:
    with tuned_interpreter(123_456):
        assert gc.get_threshold()[0] == 123_456
