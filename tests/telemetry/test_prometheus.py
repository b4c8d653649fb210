"""`prometheus_hooks`: what calls, attempts, tokens and seconds there were, by few labels."""

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sampling import (
    Generation,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    TransientError,
    Usage,
    fan_out,
)
from sampling.backends.layers import Retrying
from sampling.errors import AuthenticationFailed
from sampling.load import LoadRun, OpenLoop, strategy_workload
from sampling.telemetry.prometheus import prometheus_hooks
from sampling.testing import After, ScriptedBackend

IS_B = Requirement("is b", check=lambda text: text == "b")


@pytest.fixture
def registry():
    return CollectorRegistry()


def test_attempts_tokens_and_seconds_are_counted_by_strategy(run, registry):
    """Counters have each outcome, and the tokens of losers."""
    plan = {0: (3, "b"), 1: (1, "a"), 2: (2, TransientError("gone")), 3: (9, "b")}

    async def backend(request):
        wait_s, answer = plan[request.subsample]
        await anyio.sleep(wait_s)
        if isinstance(answer, Exception):
            raise answer
        return Generation(answer, Usage(10, 4, 0.25))

    strategy = RejectionSamplingStrategy(concurrency_budget=4, hooks=prometheus_hooks(registry))
    run(strategy.sample, "q", None, backend, [IS_B])

    def value(name, **labels):
        return registry.get_sample_value(name, {"strategy": "RejectionSamplingStrategy", **labels})

    for outcome in ("valid", "invalid", "errored", "cancelled"):
        assert 1 == value("sampling_attempts_total", outcome=outcome)
    assert 1 == value("sampling_calls_total", stop_reason="validated")
    assert (20, 8) == (value("sampling_tokens_total", kind="input"), value("sampling_tokens_total", kind="output"))
    assert 0.5 == value("sampling_cost_total")
    assert 3.0 == pytest.approx(value("sampling_call_seconds_sum"))
    assert 1.0 == pytest.approx(value("sampling_attempt_seconds_sum", outcome="invalid"))
    assert 0 == value("sampling_calls_running")


def test_a_call_is_running_until_it_ends_however_it_ends(run, registry):
    """Seen from inside of the backend, and after an error."""
    seen = []

    async def backend(request):
        labels = {"strategy": "MultiTurnStrategy"}
        seen.append(registry.get_sample_value("sampling_calls_running", labels))
        raise AuthenticationFailed("no")

    with pytest.raises(AuthenticationFailed):
        run(MultiTurnStrategy(hooks=prometheus_hooks(registry)).sample, "q", None, backend)

    assert [1] == seen
    assert 0 == registry.get_sample_value("sampling_calls_running", {"strategy": "MultiTurnStrategy"})
    assert 1 == registry.get_sample_value(
        "sampling_calls_total", {"strategy": "MultiTurnStrategy", "stop_reason": "raised"}
    )


def test_no_text_and_no_id_is_a_label(run, registry):
    """Labels have few values and never contain texts."""
    result = run(
        RejectionSamplingStrategy(hooks=prometheus_hooks(registry, prefix="app")).sample,
        "the prompt",
        None,
        ScriptedBackend(["the answer"]),
    )

    exposed = generate_latest(registry).decode()
    assert "app_attempts_total" in exposed
    assert not any(text in exposed for text in ("the prompt", "the answer", result.sampling_id))


def test_requests_are_measured_one_by_one(run, registry):
    """Each try of a retry is a request. Tokens that nobody knows are not counted as 0."""
    script = [After(0.5, TransientError("busy")), After(1, Generation("b", Usage(5, 2)))]
    strategy = RejectionSamplingStrategy(hooks=prometheus_hooks(registry))
    backend = Retrying(ScriptedBackend(script), attempts=2)
    run(strategy.sample, "q", None, backend, options=Options(model="m"))

    def value(name, **labels):
        return registry.get_sample_value(name, {"provider": "custom", "model": "m", **labels})

    assert 1 == value("sampling_request_seconds_count", error_type="TransientError")
    assert 1.0 == pytest.approx(value("sampling_request_seconds_sum", error_type=""))
    assert (1, 5) == tuple(value(f"sampling_request_tokens_{part}", kind="input") for part in ("count", "sum"))
    assert b"first_chunk_seconds_count" not in generate_latest(registry)


def test_what_was_lost_is_counted(run, registry):
    """The time to a valid answer, and the tokens of all other attempts."""

    def reply(request):
        return After(1 + request.subsample, Generation("b" if request.subsample else "a", Usage(5, 2)))

    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=prometheus_hooks(registry))
    run(strategy.sample, "q", None, ScriptedBackend(reply), [IS_B])

    labels = {"strategy": "RejectionSamplingStrategy"}
    assert 2.0 == pytest.approx(registry.get_sample_value("sampling_time_to_valid_seconds_sum", labels))
    assert 5 == registry.get_sample_value("sampling_wasted_tokens_total", {**labels, "kind": "input"})
    assert 2 == registry.get_sample_value("sampling_wasted_tokens_total", {**labels, "kind": "output"})


def test_a_fan_out_and_a_load_run_are_covered(run, registry):
    """Their calls, requests and items are counted, and hooks of one registry serve both."""
    hooks = prometheus_hooks(registry)

    async def both():
        backend = ScriptedBackend(lambda _: After(0.1, Generation("b", Usage(5, 2))))
        await fan_out(RejectionSamplingStrategy(), ["1", "2", "3"], None, backend, [IS_B], hooks=hooks)
        workload = strategy_workload(RejectionSamplingStrategy(hooks=hooks), ["q"], None, backend, [IS_B])
        await LoadRun(workload, OpenLoop(rate=10, requests=7)).run()

    run(both)

    strategy = {"strategy": "RejectionSamplingStrategy"}
    assert 3 == registry.get_sample_value("sampling_fan_out_items_total", {**strategy, "status": "succeeded"})
    assert 10 == registry.get_sample_value("sampling_calls_total", {**strategy, "stop_reason": "validated"})
    requests = {"provider": "custom", "model": "", "error_type": ""}
    assert 10 == registry.get_sample_value("sampling_request_seconds_count", requests)
