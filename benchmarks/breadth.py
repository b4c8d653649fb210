"""
Measure the costs and benefits of breadth.

A simulated server in virtual time gives the same numbers on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchmarks.frontier import Curve, Panel, draw
from benchmarks.report import Check, Row, Section, Settings, ratio
from sampling import (
    BaseSamplingStrategy,
    Generation,
    HedgedSamplingStrategy,
    RejectionSamplingStrategy,
    Request,
    Requirement,
)
from sampling._virtual_time import LoopName
from sampling.backends.simulated import SimulatedBackend, lognormal
from sampling.testing import run_virtual

CALLS, QUICK_CALLS = 10_000, 1_000
DEPTH = 64
PICTURE = Path(__file__).parent.parent / "docs" / "explanation" / "hedging.svg"

ONE, HEDGED, RUN_ON = "one at a time", "hedged, up to 4", "breadth 4, losers run on"
QUANTILES = (0.4, 0.85)
"""Other settings of the hedge, for the picture."""


@dataclass(frozen=True)
class Targets:
    """The targets at one pass probability."""

    run_on_tokens: float
    hedged_p95: float
    hedged_requests: float


TARGETS = {0.5: Targets(2.4, 1.3, 0.82), 0.8: Targets(3.0, 1.55, 0.68)}


@dataclass(frozen=True)
class Measured:
    """Averages and percentiles of many calls of one strategy."""

    p50_s: float
    p95_s: float
    requests: float
    output_tokens: float
    input_tokens: float


class RunsOn:
    """
    A backend whose requests can't be cancelled.

    They run to their end, even if nothing waits for them.
    """

    def __init__(self, backend: SimulatedBackend, group: anyio.abc.TaskGroup) -> None:
        self._backend = backend
        self._group = group

    async def generate(self, request: Request) -> Generation:
        """Generate in a background task, and wait for the answer."""
        answers: list[Generation] = []
        answered = anyio.Event()

        async def answer() -> None:
            answers.append(await self._backend.generate(request))
            answered.set()

        self._group.start_soon(answer)
        await answered.wait()
        return answers[0]


def run(settings: Settings) -> list[Section]:
    """Measure every strategy, and draw the chart."""
    calls = QUICK_CALLS if settings.quick else CALLS
    measured = measure_all(calls)
    if not settings.quick:
        PICTURE.write_text(picture(measured, calls))
    return [_section(passing, found, calls) for passing, found in measured.items()]


def measure_all(calls: int, workers: int | None = None) -> dict[float, dict[str, Measured]]:
    """
    Measure every strategy at every pass probability.

    It uses all CPUs. That does not distort the results, because no real clock is read.
    """
    with ProcessPoolExecutor(workers) as pool:
        found = {
            passing: {
                name: pool.submit(measure, strategy, passing, calls, stops=name != RUN_ON) for name, strategy in _all()
            }
            for passing in TARGETS
        }
        return {passing: {name: one.result() for name, one in some.items()} for passing, some in found.items()}


def _all() -> list[tuple[str, BaseSamplingStrategy]]:
    hedged = {quantile: HedgedSamplingStrategy(loop_budget=DEPTH, quantile=quantile) for quantile in QUANTILES}
    return [
        *((_name(breadth), plain(breadth)) for breadth in (1, 2, 4, 8)),
        (RUN_ON, plain(4)),
        (HEDGED, HedgedSamplingStrategy(loop_budget=DEPTH)),
        *((f"{HEDGED}, quantile {quantile:g}", strategy) for quantile, strategy in hedged.items()),
    ]


def measure(
    strategy: BaseSamplingStrategy, passing: float, calls: int, *, stops: bool = True, loop: LoopName = "asyncio"
) -> Measured:
    """Make sequential calls on a new server. Both event loops give the same result."""
    return run_virtual(_measure, strategy, passing, calls, stops, loop=loop)


async def _measure(strategy: BaseSamplingStrategy, passing: float, calls: int, stops: bool) -> Measured:  # noqa: FBT001
    server = SimulatedBackend(
        slots=10_000,
        time_to_first_token_s=0.0,
        time_per_token_s=0.02,
        output_tokens=lognormal(100, 1.0),
        pass_probability=passing,
    )
    # Only the final check of the server's requirement, without the partial one: failures show at the end of an answer.
    requirement = Requirement("is valid", server.requirement().check)
    seconds: list[float] = []
    requests = input_tokens = 0
    async with anyio.create_task_group() as group:
        backend = server if stops else RunsOn(server, group)
        for number in range(calls):
            result = await strategy.sample(f"question {number:05d}", None, backend, [requirement])
            if not result.success:
                raise AssertionError(f"{DEPTH} attempts were not enough: {result}")
            seconds.append(result.elapsed_s)
            requests += len(result.attempts)
            input_tokens += result.usage.input_tokens
    return Measured(
        _percentile(seconds, 0.5),
        _percentile(seconds, 0.95),
        requests / calls,
        server.statistics.output_tokens / calls,
        input_tokens / calls,
    )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def plain(breadth: int) -> RejectionSamplingStrategy:
    """Return a strategy whose subsamples all start at once."""
    return RejectionSamplingStrategy(loop_budget=DEPTH, concurrency_budget=breadth)


def _name(breadth: int) -> str:
    return ONE if breadth == 1 else f"breadth {breadth}"


def _section(passing: float, found: dict[str, Measured], calls: int) -> Section:
    checks = checks_of(passing, found)
    rows = tuple(
        Row(
            name,
            {"p50 s": one.p50_s, "p95 s": one.p95_s, "requests": one.requests, "output tokens": one.output_tokens},
            checks.get(name, ()),
            {"input_tokens": one.input_tokens, "calls": calls},
        )
        for name, one in found.items()
    )
    return Section(f"Time to a valid answer, {passing:.0%} of answers pass", f"{calls:,} calls each, per call", rows)


def checks_of(passing: float, found: dict[str, Measured]) -> dict[str, tuple[Check, ...]]:
    """Return the targets that these measurements must meet."""
    one, four, hedged, targets = found[ONE], found["breadth 4"], found[HEDGED], TARGETS[passing]
    run_on = ratio(found[RUN_ON].output_tokens, one.output_tokens)
    return {
        "breadth 4": (
            Check("p95: one at a time ÷ this", ratio(one.p95_s, four.p95_s), 4, at_least=True),
            Check("tokens ÷ one at a time", ratio(four.output_tokens, one.output_tokens), 1.1),
        ),
        RUN_ON: (Check("tokens ÷ one at a time", run_on, targets.run_on_tokens, at_least=True),),
        HEDGED: (
            Check("p95 ÷ breadth 4", ratio(hedged.p95_s, four.p95_s), targets.hedged_p95),
            Check("requests ÷ breadth 4", ratio(hedged.requests, four.requests), targets.hedged_requests),
        ),
    }


def picture(measured: dict[float, dict[str, Measured]], calls: int) -> str:
    """Draw p95 against requests, one panel per pass probability."""
    panels = []
    for passing, found in measured.items():
        plain = Curve(
            "all at once", tuple((found[_name(b)].requests, found[_name(b)].p95_s, str(b)) for b in (1, 2, 4, 8))
        )
        low, high = (found[f"{HEDGED}, quantile {quantile:g}"] for quantile in QUANTILES)
        steps = ((high, ""), (found[HEDGED], "hedged"), (low, ""))
        hedged = Curve("hedged, up to 4", tuple((one.requests, one.p95_s, label) for one, label in steps))
        panels.append(Panel(f"{passing:.0%} of answers pass", (plain, hedged)))
    return draw(
        "Time to a valid answer against requests",
        f"p95 seconds to a valid answer against requests per call, over {calls:,} calls each on a simulated server. "
        "One point each for 1, 2, 4 and 8 subsamples that start at once, and for hedged sampling with up to 4, "
        "which lies below the line between them.",
        panels,
    )
