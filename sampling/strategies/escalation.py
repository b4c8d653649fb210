"""Ask cheap models first, and stronger ones on failure."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar, Unpack, cast

import attrs

from sampling._arguments import check_instance, check_int, check_items, wrong_type
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
    """A backend, a strategy and options of an escalation."""

    backend: BackendLike | None = None
    """The backend of this tier. None uses the backend of the call."""

    strategy: BaseSamplingStrategy | None = None
    """The strategy of this tier. None uses a `MultiTurnStrategy` with the budgets of the escalation."""

    options: Options | None = None
    """Override the options of the call on this tier."""

    def __attrs_post_init__(self) -> None:
        if self.backend is not None:
            generate_of(self.backend)
        if self.strategy is not None:
            check_instance("strategy", self.strategy, BaseSamplingStrategy, "a strategy or None")
        if self.options is not None:
            check_instance("options", self.options, Options, "Options or None")


class EscalationStrategy(BaseSamplingStrategy):
    """
    Try tiers in order until an answer is valid.

    Use it when a cheap model is often good enough.
    Each tier is a nested call with its own backend, strategy and options.
    It ends when an answer is valid or its budgets are used up. A subsample of it also ends
    when `patience` attempts in a row did not improve: no more requirements met, and no higher score.
    The next tier gets the question, the best answer so far, and the reasons why that failed.
    With `carry="conversation"` it gets the whole conversation that led to that answer, and continues the same chat.

    All tiers share one budget and one deadline. Every attempt of every tier is on the result.
    The hooks of this strategy and of the call see all of them, with the id of this call as `parent_id`.
    `loop_budget` and `concurrency_budget` apply to each tier that has no strategy of its own.
    A tier whose attempts all raised errors is skipped. A fatal error, such as a bad key, ends the call.

    See `BaseSamplingStrategy` for the cost of breadth.
    """

    patience: int = 2
    """Attempts without progress after which a subsample ends. Never, if it is `loop_budget` or more."""

    carry: bool | Literal["conversation"] = True
    """
    If True, show each tier the best earlier attempt and the reasons why it failed.

    "conversation" shows the turns before it, too, and pays for their tokens again with every attempt of the tier.
    """

    template: str = "This is not acceptable yet, for these reasons:\n{reasons}\nPlease give the whole answer again."

    def __init__(
        self,
        tiers: Iterable[Tier | BackendLike],
        *,
        patience: int | None = None,
        carry: bool | Literal["conversation"] | None = None,
        template: str | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the tiers, cheapest first.

        Args:
            tiers: `Tier` objects or backends.

            patience: Attempts without progress after which a subsample ends.

            carry: If True, show each tier the best attempt so far. "conversation" shows the turns before it, too.

            template: The feedback on that attempt. Must contain {reasons}.

            settings: The settings of `BaseSamplingStrategy`.
        """
        self.tiers: tuple[Tier, ...] = tuple(
            _as_tier(tier) for tier in check_items("tiers", tiers, "a list of tiers or backends")
        )
        self._take(patience=patience, carry=carry, template=template)
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not self.tiers:
            raise ValueError("tiers must not be empty")
        check_int("patience", self.patience, least=1)
        if self.carry not in (True, False, "conversation") or not isinstance(self.carry, bool | str):
            raise wrong_type("carry", self.carry, 'True, False or "conversation"')
        check_template(self.template, "{reasons}")

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None:
        """Return the next tier, or None if the call is over."""
        if len(results) == len(self.tiers) or (results and results[-1].success):
            return None
        tier = self.tiers[len(results)]
        return Stage(
            strategy=tier.strategy or self._default_strategy(),
            first=self._carried(first, results),
            backend=tier.backend,
            options=tier.options,
            should_continue=self._makes_progress,
        )

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Return the slice with the most merit.

        The last one wins a tie, because it comes from the strongest tier and the model had the most feedback.
        """
        return max(reversed(slices), key=lambda one: (one.passed, one.score))

    def _carried(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Attempt[T]:
        slices = [one for result in results for one in result.slices]
        if not self.carry or not slices:
            return first
        best = self.select_from_failure(slices)
        if self.carry == "conversation":
            answered = best.context
        else:
            # Leave out the conversation that led to it: tokens of a stronger tier cost more.
            asked = Message(first.action.role, first.action.content)
            answer = Message("assistant", "") if best.generation is None else best.generation.message
            answered = first.context.add(asked, answer)
        return Attempt(first.action.with_content(fill(self.template, best)), answered, first.options)

    def _makes_progress(self, history: Sequence[Slice[T]]) -> bool:
        # Take the first of equals: reaching the same merit again is not progress.
        best = max(range(len(history)), key=lambda place: (history[place].passed, history[place].score, -place))
        return len(history) - 1 - best < self.patience

    def _default_strategy(self) -> MultiTurnStrategy:
        return MultiTurnStrategy(template=self.template, **self.settings_of_stages())


def _as_tier(tier: object) -> Tier:
    return tier if isinstance(tier, Tier) else Tier(cast("BackendLike", tier))
