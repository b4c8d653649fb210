"""The choice of the next run of a search, from its history."""

import pytest

from sampling.load.capacity._search import Next, Trial, find_bracket, find_confidence, next_trial

PASS = Trial(100, "PASS", held_s=60, confidence=0.99)
TRIPS = [Trial(102, "TRIP", held_s=60)] * 2


def following(*trials: Trial) -> Next | None:
    return next_trial(trials, precision=0.05)


def test_the_answer_is_run_once_more_and_for_longer():
    """R12: it was chosen because it passed, perhaps by luck."""
    assert Next(100, "repeat", 2) == following(PASS, *TRIPS)
    assert following(PASS, *TRIPS, Trial(100, "PASS", held_s=120, confidence=0.99)) is None
    assert Next(100, "repeat", 1) == next_trial([PASS, *TRIPS], precision=0.05, longer=False)


def test_an_uncertain_answer_is_run_again():
    """R12: up to twice, or three times if it is more likely wrong than right."""
    runs = [PASS, *TRIPS, Trial(100, "PASS", held_s=120, confidence=0.8)]
    assert Next(100, "repeat", 2) == following(*runs)
    assert following(*runs, Trial(100, "PASS", held_s=120, confidence=0.8)) is None
    assert Next(100, "repeat", 2) == following(*runs, Trial(100, "PASS", held_s=120, confidence=0.1))


def test_a_longer_run_outweighs_a_shorter_one():
    """R12: a trip in the longer run overturns the pass, once it is confirmed."""
    runs = [Trial(90, "PASS", held_s=60), PASS, *TRIPS, Trial(100, "TRIP", held_s=120)]
    assert 100 == find_bracket(runs).tripped
    assert Next(100, "repeat") == following(*runs)
    assert (90, 100) == (
        find_bracket([*runs, Trial(100, "TRIP", held_s=60)]).passed,
        find_bracket([*runs, Trial(100, "TRIP", held_s=60)]).tripped,
    )


def test_a_trip_with_one_pause_decides_only_alone():
    """R12: a pause can trip any rate, so that any other run at the rate outweighs it."""
    paused = Trial(100, "TRIP", held_s=120, paused=True)
    assert 100 == find_bracket([PASS, *TRIPS, paused]).passed
    assert 100 == find_bracket([Trial(90, "PASS"), paused, *TRIPS]).tripped
    assert Next(100, "repeat") == following(Trial(90, "PASS"), paused, *TRIPS)
    assert 0.99 == find_confidence([PASS, paused], 100)


def test_the_confidence_is_from_all_runs_near_the_answer():
    """R12: a trip counts 0, a longer run more, and a lucky run is not more certain than those at lower rates."""
    assert find_confidence([PASS], 100) == 0.99
    assert (
        find_confidence([PASS], None) is find_confidence([], 100) is find_confidence([Trial(100, "PASS")], 100) is None
    )
    assert pytest.approx(0.33) == find_confidence([PASS, Trial(100, "TRIP", held_s=120)], 100)
    assert pytest.approx(0.745) == find_confidence([Trial(98, "PASS", held_s=60, confidence=0.5), PASS], 100)
    assert pytest.approx(0.99) == find_confidence([Trial(50, "PASS", held_s=60, confidence=0.5), PASS], 100)
    assert pytest.approx(0.99) == find_confidence([Trial(98, "PASS", held_s=60, confidence=1.0), PASS], 100)
