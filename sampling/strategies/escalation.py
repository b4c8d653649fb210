"""From cheap to strong."""

from collections.abc import Iterable, Sequence
from typing import TypeVar, Unpack, cast

import attrs

from sampling._arguments import check_bool, check_instance, check_int, check_items
from sampling.messages import Attempt, Message, Options
from sampling.protocols import BackendLike, Stage, generate_of
from sampling.results import SamplingResult, Slice
from sampling.strategies._feedback import check_template, fill
from sampling.strategies.multi_turn import MultiTurnStrategy
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["EscalationStrategy", "Tier"]

T = TypeVar("T")


@attrs.frozen
class Tier:
    """Who is asked on one step of an escalation, and how."""

    backend: BackendLike | None = None
    """Who answers; None for the backend of the call."""

    strategy: BaseSamplingStrategy | None = None
    """How to ask; None for a conversation (`MultiTurnStrategy`) with the budgets of the escalation."""

    options: Options | None = None
    """Put over the options of the call, on this tier only."""

    def __attrs_post_init__(self) -> None:
        if self.backend is not None:
            generate_of(self.backend)
        if self.strategy is not None:
            check_instance("strategy", self.strategy, BaseSamplingStrategy, "a strategy or None")
        if self.options is not None:
            check_instance("options", self.options, Options, "Options or None")


class EscalationStrategy(BaseSamplingStrategy):
    """
    Ask the first tier, and the next one only if that gave no valid answer.

    Each tier is a call of its own inside this one, with a backend, a strategy and options of its own where it has them.
    It ends when its answer is valid, when its budgets are used up, and, subsample by subsample,
    when `patience` attempts in a row were no better than the best before them: no more requirements met,
    and no higher score. Then the next tier is asked to improve on the best attempt so far: it sees the question,
    that answer, and why it was not accepted.

    One budget and one deadline govern all tiers. Every attempt of every tier is on the result, and hooks of this
    strategy and of the call see all of them; events of a tier carry this call's id as their `parent_id`.
    `loop_budget` and `concurrency_budget` are those of each tier that has no strategy of its own.
    A tier whose attempts all failed with errors is passed over, unless the error is fatal: a bad key ends the call.

    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    patience: int = 2
    """After how many attempts without progress a subsample gives up; with `loop_budget` or more, never."""

    carry: bool = True
    """Whether a tier is shown the best attempt of those before it, and why that failed."""

    template: str = "This is not acceptable yet, for these reasons:\n{reasons}\nPlease give the whole answer again."

    def __init__(
        self,
        tiers: Iterable[Tier | BackendLike],
        *,
        patience: int | None = None,
        carry: bool | None = None,
        template: str | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Take the tiers, cheapest first, and what the base takes.

        Args:
            tiers: A `Tier` each, or just its backend.

            patience: After how many attempts without progress a subsample gives up.

            carry: Whether a tier is shown the best attempt so far.

            template: How it is told what is wrong with that, with {reasons} in it.
        """
        self.tiers = tuple(_as_tier(tier) for tier in check_items("tiers", tiers, "a list of tiers or backends"))
        self._take(patience=patience, carry=carry, template=template)
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not self.tiers:
            raise ValueError("tiers must not be empty")
        check_int("patience", self.patience, least=1)
        check_bool("carry", self.carry)
        check_template(self.template, "{reasons}")

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None:
        """Go one tier up while there is no valid answer and there is a tier left."""
        if len(results) == len(self.tiers) or (results and results[-1].success):
            return None
        tier = self.tiers[len(results)]
        return Stage(
            strategy=tier.strategy or self._conversation(),
            first=self._carried(first, results),
            backend=tier.backend,
            options=tier.options,
            should_continue=self._makes_progress,
        )

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose by merit; of equals, the last, which comes from the strongest tier and was told the most."""
        return max(reversed(slices), key=lambda one: (one.passed, one.score))

    def _carried(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Attempt[T]:
        slices = [one for result in results for one in result.slices]
        if not self.carry or not slices:
            return first
        best = self.select_from_failure(slices)
        # Not the whole conversation that led to it: a stronger tier's tokens cost more, and it can do without.
        answered = first.context.add(Message("user", first.action.text), Message("assistant", best.text or ""))
        return Attempt(first.action.with_text(fill(self.template, best)), answered, first.options)

    def _makes_progress(self, history: Sequence[Slice[T]]) -> bool:
        # The first of the best: an equal that came later is no progress.
        best = max(range(len(history)), key=lambda place: (history[place].passed, history[place].score, -place))
        return len(history) - 1 - best < self.patience

    def _conversation(self) -> MultiTurnStrategy:
        return MultiTurnStrategy(
            template=self.template,
            loop_budget=self.loop_budget,
            concurrency_budget=self.concurrency_budget,
            deterministic=self.deterministic,
            check_timeout_s=self.check_timeout_s,
            max_context_chars=self.max_context_chars,
            variation=self.variation,
        )


def _as_tier(tier: object) -> Tier:
    return tier if isinstance(tier, Tier) else Tier(cast("BackendLike", tier))
