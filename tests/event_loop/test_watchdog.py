"""The watchdog logs which function blocked the event loop."""

import time

import pytest
from structlog.testing import capture_logs

import sampling._event_loop.watchdog
from sampling import Hooks, IterationFinished, RejectionSamplingStrategy, Requirement
from sampling.testing import ScriptedBackend


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Lower the threshold to a twentieth of a second."""
    monkeypatch.setattr(sampling._event_loop.watchdog, "BLOCKED_S", 0.05)


async def sample(strategy, check):
    return await strategy.sample("q", None, ScriptedBackend(["x"]), [Requirement("takes its time", check=check)])


def test_a_check_that_blocks_is_named(run):
    """Row 52: a check that is not declared as blocking, and blocks."""
    with capture_logs() as logs:
        run(sample, RejectionSamplingStrategy(), lambda text: time.sleep(0.1) is None)
    assert ["takes its time"] == [line["by"] for line in logs if line["event"] == "event_loop_blocked"]


def test_a_hook_that_blocks_is_named(run):
    """Row 49: a blocking sync hook can't be interrupted, but is logged."""
    hooks = Hooks()

    @hooks.on(IterationFinished)
    def dawdles(event):
        time.sleep(0.1)

    with capture_logs() as logs:
        run(sample, RejectionSamplingStrategy(hooks=hooks), lambda text: True)
    [blocked] = [line for line in logs if line["event"] == "event_loop_blocked"]
    assert "dawdles" in blocked["by"]
    assert blocked["blocked_s"] >= 0.1


def test_nobody_else_is(run):
    """Functions below the threshold are not logged."""
    sampling._event_loop.watchdog.BLOCKED_S = 60.0
    with capture_logs() as logs:
        run(sample, RejectionSamplingStrategy(), lambda text: True)
    assert not logs
