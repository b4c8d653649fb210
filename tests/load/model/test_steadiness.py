"""Pauses, drift and dependence of latencies are recognised."""

import random
from itertools import accumulate

import anyio
import pytest

from sampling.load import Arrival, OpenLoop, run_load
from sampling.load.model._steadiness import confidence_of_growth, confidence_of_level, count_independent, find_pause


def noise(seed: int, count: int = 20) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(1.0, 0.1) for _ in range(count)]


def test_values_that_wander_say_less_than_values_that_scatter():
    """R12: twenty values that scatter are worth about twenty, those of a random walk one to three."""
    scattered = [count_independent(noise(seed)) for seed in range(50)]
    wandering = [count_independent(list(accumulate(noise(seed), lambda a, b: a + b - 1))) for seed in range(50)]
    assert sum(scattered) / 50 > 12
    assert sum(wandering) / 50 < 4
    assert 20 == count_independent([1.0] * 20)


def test_a_level_that_wanders_is_less_certain():
    """R12: the same values in another order, and the same distance from the limit."""
    values = sorted(noise(1))
    shuffled = random.Random(2).sample(values, len(values))
    assert confidence_of_level(shuffled, 1.2, 1.3, 95) > 0.9 > confidence_of_level(values, 1.2, 1.3, 95) > 0.5
    assert confidence_of_level(values, 1.2, 10.0, 95) > 0.95
    assert confidence_of_level(values, 1.4, 1.3, 95) < 0.5
    assert (1.0, 0.0) == (confidence_of_level([1.0] * 20, 1.0, 1.0, 95), confidence_of_level([1.0] * 20, 1.1, 1.0, 95))


def test_growth_is_certain_only_beyond_its_noise():
    """R12: latencies that grow by a tenth of a second every second can't be held, those that stay can."""
    growing = [0.1 * at + each for at, each in enumerate(noise(1))]
    growth, sure = confidence_of_growth(growing, 20.0, 0.005)
    assert (pytest.approx(0.1, abs=0.01), pytest.approx(0.0, abs=0.01)) == (growth, sure)
    assert confidence_of_growth([1.0] * 20, 20.0, 0.005) == (0.0, 1.0)


@pytest.mark.parametrize(("pauses", "found_s"), [((), 0.0), ((5.0,), 3.0), ((3.0, 12.0), 0.0)])
def test_one_pause_of_the_server_is_found(run, pauses, found_s):
    """R12: a time in which nothing was answered, unless it happens again and again."""

    async def server(arrival: Arrival) -> None:
        now = arrival.intended_s
        rest = [at + 3 - now for at in pauses if at <= now < at + 3]
        await anyio.sleep(0.1 + (rest[0] if rest else 0.0))

    report = run(run_load, server, OpenLoop(rate=20, duration_s=20))
    assert pytest.approx(found_s, abs=0.2) == find_pause(report)
