"""Workloads made of strategies."""

import subprocess
import sys

import pytest

from sampling import MultiTurnStrategy, RejectionSamplingStrategy, Request, TransientError
from sampling.backends.simulated import SimulatedBackend
from sampling.load import CapacityAnswer, LoadReport, OpenLoop, Slo, find_capacity, run_load, strategy_workload
from tests.load.seeded import LOOPS, run_seeded


def server(**settings) -> SimulatedBackend:
    return SimulatedBackend(
        seed=1,
        **{"slots": 50, "time_to_first_token_s": 0.2, "time_per_token_s": 0.1, "output_tokens": 4, **settings},
    )


def test_a_request_is_valid_invalid_or_failed(run):
    """Goodput counts valid answers within the SLO."""
    backend = server(pass_probability=0.5, failures=0.1)
    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, backend, [backend.requirement()])
    report = run(run_load, workload, OpenLoop(rate=20, duration_s=50), slo=Slo(p95_s=1.0))
    assert 0.1 == pytest.approx(report.error_rate, abs=0.03)
    assert 0.5 == pytest.approx(report.validity_rate, abs=0.05)
    assert {"TransientError"} == set(report.errors)
    assert report.good == report.valid
    assert (report.admitted, report.requests) == (1000, 1000)


def test_the_first_token_is_stamped_where_the_backend_streams(run):
    """Time to first token is measured for streams, and unknown for a plain function."""
    backend = server(pass_probability=1.0)
    streamed = run(
        run_load, strategy_workload(RejectionSamplingStrategy(), ["hi"], None, backend), OpenLoop(rate=5, duration_s=5)
    )
    assert (0.2, 0.5) == pytest.approx((streamed.time_to_first_token.p50, streamed.latency.p50))
    whole = run(
        run_load,
        strategy_workload(RejectionSamplingStrategy(), ["hi"], None, backend.generate),
        OpenLoop(rate=5, duration_s=5),
    )
    assert 0 == whole.time_to_first_token.count


def test_repairs_count_as_requests_and_tokens(run):
    """Up to three requests for one arrival, and the time to a valid answer covers all of them."""
    backend = server(pass_probability=0.5)
    workload = strategy_workload(
        MultiTurnStrategy(loop_budget=3), ["hi"], None, backend.generate, [backend.requirement()]
    )
    report = run(run_load, workload, OpenLoop(rate=5, duration_s=60))
    assert 1.75 == pytest.approx(report.requests / report.admitted, abs=0.15)
    assert 4 * report.requests == report.output_tokens
    assert report.time_to_valid.count == report.valid
    assert 1.5 == pytest.approx(report.time_to_valid.max)


def test_actions_are_gone_through_in_turn_or_used_up(run):
    """A list again and again, an iterator once, a function as it likes."""
    asked: list[str] = []

    async def ask(request: Request) -> str:
        asked.append(request.messages[-1].content)
        return "yes"

    def texts(actions) -> list[str]:
        asked.clear()
        workload = strategy_workload(RejectionSamplingStrategy(), actions, None, ask)
        run(run_load, workload, OpenLoop(rate=5, requests=5))
        return list(asked)

    assert ["a", "b", "a", "b", "a"] == texts(["a", "b"])
    assert ["a", "b"] == texts(iter(["a", "b"]))
    assert ["hi"] * 5 == texts("hi")
    assert ["0", "1", "2", "3", "4"] == texts(lambda arrival: str(arrival.number))


@pytest.mark.parametrize(
    ("actions", "error", "says"),
    [([], ValueError, "actions must not be empty"), (5, TypeError, "actions must be a list of actions")],
)
def test_actions_that_are_none_say_so(actions, error, says):
    """Invalid actions raise an error that says what is allowed."""
    with pytest.raises(error, match=says):
        strategy_workload(RejectionSamplingStrategy(), actions, None, server())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_simulated_server_gives_the_same_bytes_for_a_seed(loop):
    """Virtual time: run_load and find_capacity, through strategy and simulated server."""

    async def once() -> tuple[str, str]:
        backend = server(pass_probability=0.7, slots=4)
        workload = strategy_workload(
            RejectionSamplingStrategy(loop_budget=2), ["hi"], None, backend, backend.requirements
        )
        report = await run_load(workload, OpenLoop(rate=5, duration_s=20, arrivals="poisson"), seed=3)
        answer = await find_capacity(workload, "4,12", Slo(p95_s=2.0), warmup_s=1, hold_s=10, cooldown_s=1, seed=3)
        return report.to_json(samples=True), answer.to_json()

    first, second = run_seeded(loop, once), run_seeded(loop, once)
    assert first == second
    report, answer = LoadReport.from_json(first[0]), CapacityAnswer.from_json(first[1])
    assert (first[0], first[1]) == (report.to_json(samples=True), answer.to_json())


def test_a_file_of_another_schema_is_refused():
    """Files say what they are, in which version."""
    with pytest.raises(ValueError, match=r"schema must be 'sampling.load/1', got 'sampling.load/9'"):
        LoadReport.from_json('{"schema": "sampling.load/9"}')
    with pytest.raises(ValueError, match=r"schema must be 'sampling.capacity/1', got None"):
        CapacityAnswer.from_json("{}")


def test_import_sampling_does_not_import_load():
    """`import sampling` does not import `sampling.load`."""
    code = "import sampling, sys; sys.exit(any(name.startswith('sampling.load') for name in sys.modules))"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode  # noqa: S603


def test_a_failure_of_the_backend_is_a_failed_request(run):
    """The error keeps its type."""

    async def down(request: Request) -> str:
        raise TransientError("down")

    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, down)
    report = run(run_load, workload, OpenLoop(rate=5, requests=5))
    assert ({"TransientError": 5}, 5) == (report.errors, report.failed)
