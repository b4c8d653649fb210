"""Assert how often a strategy finds a valid answer."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import anyio
import attrs

from sampling._arguments import check_bool, check_int, check_number
from sampling._picklable import Picklable
from sampling._text import quoted
from sampling.budgets import Budget
from sampling.errors import BudgetExceeded
from sampling.messages import Action, Context
from sampling.options import Options
from sampling.parts import Part
from sampling.protocols import BackendLike
from sampling.requirements import RequirementLike
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import NO_USAGE, Usage

__all__ = ["PassRate", "PassRateSettings", "PassRateTooLow", "assert_samples", "assert_samples_sync"]

_MAX_SAMPLES = 10_000
_NAMED_FAILURES = 3

observers: list[Callable[["PassRate"], None]] = []
"""Called with every measured pass rate. The pytest plugin prints them."""


@attrs.frozen
class PassRate:
    """A measured share of calls that found a valid answer."""

    passed: int
    samples: int
    """The number of calls that were made. It is smaller than asked for if the verdict was certain earlier."""

    wanted: float
    confidence: float
    usage: Usage = NO_USAGE
    failures: tuple[str, ...] = ()
    """The most frequent reasons of calls without a valid answer."""

    @property
    def rate(self) -> float | None:
        """The share that passed, or None if there were no samples."""
        return self.passed / self.samples if self.samples else None

    @property
    def interval(self) -> tuple[float, float]:
        """The exact (Clopper-Pearson) confidence interval of the rate."""
        tail = (1 - self.confidence) / 2
        low = _solve(lambda p: 1 - _at_most(self.passed - 1, self.samples, p) < tail) if self.passed else 0.0
        high = _solve(lambda p: _at_most(self.passed, self.samples, p) >= tail) if self.passed < self.samples else 1.0
        return low, high

    def __str__(self) -> str:
        if self.rate is None:
            return "no samples"
        low, high = self.interval
        tokens = f" · {self.usage.total_tokens} tokens" if self.usage.total_tokens else ""
        cost = f" · cost {self.usage.cost:.6g}" if self.usage.cost else ""
        return (
            f"{self.passed} of {self.samples} passed: {self.rate:.0%},"
            f" {self.confidence:.0%} interval {low:.0%} to {high:.0%}, wanted {self.wanted:.0%}{tokens}{cost}"
        )


class PassRateTooLow(Picklable, AssertionError):
    """The pass rate is too low, or the budget ended before that could be decided."""

    def __init__(self, why: str, pass_rate: PassRate) -> None:
        self.pass_rate = pass_rate
        super().__init__(f"{why}: {pass_rate}" + "".join(f"\n  {failure}" for failure in pass_rate.failures))


class PassRateSettings(TypedDict, total=False):
    """The settings of `assert_samples()`."""

    pass_rate: float
    """The wanted share of calls with a valid answer, between 0 and 1. 0.9 by default."""

    samples: int
    """The number of calls at most. 30 by default."""

    confidence: float
    """The confidence of the interval around the measured rate. 0.95 by default."""

    prove: bool
    """Require evidence that the rate is high enough, and not only no evidence against it."""

    max_concurrency: int
    """The number of calls at a time. 4 by default."""

    options: Options | None
    """The options of every call. With a seed, no two calls send the same one."""

    budget: Budget | None
    """A budget that all calls share. If it ends before the verdict is certain, that is a failure."""


async def assert_samples(
    strategy: BaseSamplingStrategy,
    action: Action[Any] | str | Sequence[Part],
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None = None,
    **settings: Unpack[PassRateSettings],
) -> PassRate:
    """
    Make many calls, and raise `PassRateTooLow` if too few of them find a valid answer.

    By default it fails if the calls show, with the confidence, that the true rate is below `pass_rate`.
    A rate that merely looks low in a few samples does not fail, so a healthy prompt seldom breaks a build.
    With `prove=True` it fails unless the calls show that the rate is at least `pass_rate`, which takes more of them.

    It stops, and cancels what is under way, as soon as the remaining calls can't change the verdict.
    Errors of the backend are raised as they are.
    """
    plan = _Plan(**settings)
    draws = _Draws(plan)
    requirements = None if reqs is None else tuple(reqs)
    numbers = iter(range(plan.samples))

    async def draw() -> None:
        for number in numbers:
            options = plan.options_of(number, strategy)
            try:
                draws.add(
                    await strategy.sample(action, ctx, backend, requirements, options=options, budget=plan.budget)
                )
            except BudgetExceeded as error:
                draws.cut_short = str(error)
            except Exception as error:  # noqa: BLE001 - it is raised below, bare and not in a group
                draws.error = error
            if draws.ended:
                group.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as group:
        for _ in range(min(plan.max_concurrency, plan.samples)):
            group.start_soon(draw)
    return draws.judge()


def assert_samples_sync(
    strategy: BaseSamplingStrategy,
    action: Action[Any] | str | Sequence[Part],
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None = None,
    **settings: Unpack[PassRateSettings],
) -> PassRate:
    """Run `assert_samples()` from a test without an event loop."""
    return anyio.run(partial(assert_samples, **settings), strategy, action, ctx, backend, reqs)


@attrs.frozen(kw_only=True)
class _Plan:
    """The settings of a measurement, and the counts that decide it."""

    pass_rate: float = attrs.field(default=0.9)
    samples: int = attrs.field(default=30)
    confidence: float = attrs.field(default=0.95)
    prove: bool = attrs.field(default=False)
    max_concurrency: int = attrs.field(default=4)
    options: Options | None = None
    budget: Budget | None = None
    enough: int = attrs.field(init=False)
    """The number of passes that make a pass."""

    def __attrs_post_init__(self) -> None:
        for name in ("pass_rate", "confidence"):
            if check_number(name, getattr(self, name), above=0) >= 1:
                raise ValueError(f"{name} must be < 1, got {getattr(self, name)}")
        if check_int("samples", self.samples, least=1) > _MAX_SAMPLES:
            raise ValueError(f"samples must be <= {_MAX_SAMPLES}, got {self.samples}")
        check_bool("prove", self.prove)
        check_int("max_concurrency", self.max_concurrency, least=1)
        object.__setattr__(self, "enough", self._passes_needed())
        if self.enough > self.samples:
            raise ValueError(
                f"{self.samples} samples can't prove a rate of {self.pass_rate:g} even if all pass:"
                f" use samples={self._fewest_that_prove()} or more"
            )
        if self.enough == 0:
            raise ValueError(
                f"{self.samples} samples can't show a rate below {self.pass_rate:g} even if all fail:"
                " use more samples, or the check could never fail"
            )

    def _passes_needed(self) -> int:
        if self.prove:
            return next((k for k in range(self.samples + 1) if self.shows_enough(k, self.samples)), self.samples + 1)
        return next(k for k in range(self.samples + 1) if not self.shows_too_few(k, self.samples))

    def _fewest_that_prove(self) -> int:
        # All pass with probability rate ** n.
        return math.ceil(math.log(self._tail) / math.log(self.pass_rate))

    @property
    def _tail(self) -> float:
        return (1 - self.confidence) / 2

    def shows_enough(self, passed: int, count: int) -> bool:
        """Return True if the whole confidence interval is at or above the wanted rate."""
        return 1 - _at_most(passed - 1, count, self.pass_rate) <= self._tail

    def shows_too_few(self, passed: int, count: int) -> bool:
        """Return True if the whole confidence interval is below the wanted rate."""
        return _at_most(passed, count, self.pass_rate) < self._tail

    def options_of(self, number: int, strategy: BaseSamplingStrategy) -> Options | None:
        """Return the options of a call, with a seed that no other call uses."""
        if self.options is None or self.options.seed is None:
            return self.options
        apart = number * strategy.loop_budget * strategy.concurrency_budget
        return attrs.evolve(self.options, seed=self.options.seed + apart)


@attrs.define
class _Draws:
    """The calls that were made."""

    plan: _Plan
    passed: int = 0
    failed: int = 0
    usage: Usage = NO_USAGE
    failures: Counter[str] = attrs.field(factory=Counter[str])
    error: Exception | None = None
    cut_short: str | None = None
    """The limit that ended the calls before the verdict, if any."""

    def add(self, result: SamplingResult[Any]) -> None:
        self.usage += result.usage
        if result.success:
            self.passed += 1
        elif result.stop_reason in {"budget", "deadline"}:
            # The model had not all of its attempts, so this says nothing about it.
            self.cut_short = result.stop_detail or result.stop_reason
        else:
            self.failed += 1
            self.failures.update(_reasons(result))

    @property
    def ended(self) -> bool:
        """True if no further call can change the verdict."""
        certain = self.passed >= self.plan.enough or self.plan.samples - self.failed < self.plan.enough
        return certain or self.error is not None or self.cut_short is not None

    def judge(self) -> PassRate:
        """Return the pass rate, or raise."""
        if self.error is not None:
            raise self.error
        rate = PassRate(
            passed=self.passed,
            samples=self.passed + self.failed,
            wanted=self.plan.pass_rate,
            confidence=self.plan.confidence,
            usage=self.usage,
            failures=tuple(f"{count} × {why}" for why, count in self.failures.most_common(_NAMED_FAILURES)),
        )
        for observe in observers:
            observe(rate)
        if self.passed >= self.plan.enough:
            return rate
        if self.plan.samples - self.failed < self.plan.enough:
            raise PassRateTooLow("the pass rate is not proven" if self.plan.prove else "the pass rate is too low", rate)
        raise PassRateTooLow(f"undecided, because the budget ended ({self.cut_short})", rate)


def _reasons(result: SamplingResult[Any]) -> Iterable[str]:
    """Return why the best answer is not valid."""
    complaints = () if result.best is None else result.best.complaints
    return [quoted(complaint, 200) for complaint in complaints] or [str(result)]


def _at_most(passed: int, count: int, rate: float) -> float:
    """Return the probability of at most `passed` passes in `count` calls."""
    if passed >= count:
        return 1.0
    odds = math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * odds[0]
            + (count - k) * odds[1]
        )
        for k in range(passed + 1)
    )


def _solve(is_below: Callable[[float], bool]) -> float:
    """Return the rate between 0 and 1 up to which a condition holds."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low
