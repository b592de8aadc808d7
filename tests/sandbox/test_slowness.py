"""A place whose calls take much longer than the others' is named once, and once again when it has recovered."""

from __future__ import annotations

import logging

import pytest

from sandbox.slowness import FEWEST_CALLS, NUM_CALLS, Slowness

LOG = logging.getLogger("places")


def noted(slowness: Slowness, seconds: dict[str, float], num: int = NUM_CALLS) -> None:
    for _ in range(num):
        for place, each_s in seconds.items():
            slowness.note(place, each_s)
        slowness.look()


def test_a_slow_place_is_named_once_with_both_figures_and_again_once_it_has_recovered(caplog: pytest.LogCaptureFixture) -> None:
    slowness = Slowness("The server", LOG)
    noted(slowness, {"a": 0.3, "b": 0.5, "c": 2.0})
    assert caplog.messages == [
        "The server c is slow: the median of its last calls is 2.00 s, that of the others 0.40 s. It gets fewer episodes"
    ]
    noted(slowness, {"a": 0.4, "b": 0.4, "c": 0.7})  # between the two factors: as it was
    assert len(caplog.messages) == 1
    noted(slowness, {"a": 0.4, "b": 0.4, "c": 0.4})
    assert caplog.messages[1:] == ["The server c is slow no more: the median of its last calls is 0.55 s, that of the others 0.40 s"]
    noted(slowness, {"a": 0.4, "b": 0.4, "c": 2.0})
    assert len(caplog.messages) == 3, "it may become slow again"


@pytest.mark.parametrize(
    ("seconds", "num"),
    [
        ({"a": 5.0}, NUM_CALLS),  # nobody to compare it with
        ({"a": 0.001, "b": 0.09}, NUM_CALLS),  # milliseconds
        ({"a": 1.0, "b": 1.9}, NUM_CALLS),  # less than the factor
        ({"a": 1.0, "b": 9.0}, FEWEST_CALLS - 1),  # too few calls
    ],
)
def test_what_is_not_called_slow(caplog: pytest.LogCaptureFixture, seconds: dict[str, float], num: int) -> None:
    noted(Slowness("The server", LOG), seconds, num)
    assert not caplog.messages


def test_a_single_long_call_and_one_that_went_away_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    slowness = Slowness("The server", LOG)
    noted(slowness, {"a": 0.1, "b": 0.1})
    slowness.note("b", 60.0)
    slowness.look()
    slowness.forget("a")
    noted(slowness, {"b": 60.0})
    assert not caplog.messages
    noted(slowness, {"a": 0.1})
    assert len(caplog.messages) == 1


def test_it_looks_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    slowness = Slowness("The server", LOG, look_every_s=0.0)
    for _ in range(FEWEST_CALLS):
        slowness.note("a", 0.1)
        slowness.note("b", 1.0)
    assert len(caplog.messages) == 1
