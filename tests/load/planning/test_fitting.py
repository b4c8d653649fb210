"""A model is corrected until a simulation of it shows what was recorded."""

import attrs
import pytest

from sampling.load import OpenLoop, ServerModel, calibrate, simulate
from sampling.load.planning._fitting import Traffic, fit_server

NOISY = ServerModel(
    slots=8,
    time_to_first_token_s=0.003,
    time_per_token_s=0.0002,
    first_token_slowdown=0.2,
    token_slowdown=0.6,
    jitter=0.3,
    output_tokens=(20, 25, 28, 30, 34),
)
"""Much like llama.cpp with a small model: its requests share one processor, and chance has a say."""

STEADY = attrs.evolve(
    NOISY, slots=4, time_to_first_token_s=0.2, first_token_slowdown=0.0, token_slowdown=0.0, jitter=0.0
)
"""Slots that do not notice each other, and no chance."""


def recorded(server: ServerModel, share: float, *, seed: int, requests: int = 1_500):
    rate = share * server.saturation_rate
    return simulate(
        server,
        OpenLoop(rate=rate, requests=requests, arrivals="poisson", max_in_flight=10_000, drain_s=None),
        seed=seed,
    )


@pytest.mark.parametrize("server", [NOISY, STEADY], ids=["noisy", "steady"])
def test_a_wrong_guess_is_corrected(server):
    """Times, slownesses and jitter go to where the percentiles are those that were recorded."""
    traffic = [Traffic.of([recorded(server, share, seed=1).samples]) for share in (0.25, 0.8)]
    guess = attrs.evolve(
        server,
        time_to_first_token_s=1.4 * server.time_to_first_token_s,
        time_per_token_s=0.7 * server.time_per_token_s,
        first_token_slowdown=server.first_token_slowdown + 0.1,
        token_slowdown=server.token_slowdown / 2,
        jitter=server.jitter / 2,
    )
    found = fit_server(guess, traffic)
    assert found.error < 0.03
    assert server.time_to_first_token_s == pytest.approx(found.server.time_to_first_token_s, rel=0.1)
    assert server.saturation_rate == pytest.approx(found.server.saturation_rate, rel=0.05)
    assert (guess.slots, guess.output_tokens) == (found.server.slots, found.server.output_tokens)


def test_what_chance_did_is_told_from_what_others_did():
    """A server with much jitter is found from two rates, and predicts percentiles at three others."""
    found = calibrate([recorded(NOISY, share, seed=seed) for share in (0.25, 0.8) for seed in (1, 2)], slots=8)
    server = found.server
    assert NOISY.time_to_first_token_s == pytest.approx(server.time_to_first_token_s, rel=0.1)
    assert NOISY.time_per_token_s == pytest.approx(server.time_per_token_s, rel=0.1)
    assert NOISY.token_slowdown == pytest.approx(server.token_slowdown, rel=0.15)
    assert NOISY.jitter == pytest.approx(server.jitter, rel=0.15)
    assert NOISY.saturation_rate == pytest.approx(server.saturation_rate, rel=0.05)
    assert found.percentile_error < 0.03 < found.error
    for share in (0.15, 0.4, 0.6):
        predicted, measured = recorded(server, share, seed=9), recorded(NOISY, share, seed=9)
        assert measured.latency.p50 == pytest.approx(predicted.latency.p50, rel=0.05)
        assert measured.latency.p95 == pytest.approx(predicted.latency.p95, rel=0.05)


def test_a_recording_that_contradicts_itself_is_said_to_be_one():
    """A server that was ten times slower while it was idle is none that the model knows: the notes say so."""
    slow = attrs.evolve(NOISY, time_to_first_token_s=0.03, time_per_token_s=0.002)
    found = calibrate([recorded(slow, 0.05, seed=1), recorded(NOISY, 0.8, seed=1)], slots=8)
    assert found.percentile_error > 0.05
    assert "no server like this explains the recording" in found.notes[-1]
    assert () == calibrate([recorded(NOISY, share, seed=1) for share in (0.25, 0.8)], slots=8).notes


def test_a_match_is_the_same_every_time():
    """It draws by fixed seeds: the same recordings give the same server, to the last digit."""
    runs = [recorded(NOISY, share, seed=1, requests=200) for share in (0.25, 0.8)]
    assert calibrate(runs, slots=8) == calibrate(runs, slots=8)


def test_a_rate_counts_as_much_as_another():
    """However often it was recorded: many busy runs do not drown an idle one."""
    idle = recorded(NOISY, 0.1, seed=1)
    slower = attrs.evolve(NOISY, time_to_first_token_s=1.2 * NOISY.time_to_first_token_s)
    busy_and_slower = recorded(slower, 0.8, seed=1)
    once = fit_server(NOISY, [Traffic.of([idle.samples]), Traffic.of([busy_and_slower.samples])]).server
    thrice = fit_server(NOISY, [Traffic.of([idle.samples]), Traffic.of([busy_and_slower.samples] * 3)]).server
    assert once.service_s() == pytest.approx(thrice.service_s(), rel=0.03)
