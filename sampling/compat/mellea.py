"""
Use our strategies in a mellea session. It needs the extra `mellea`.

    m.instruct("A haiku about rain", strategy=MelleaStrategy(RejectionSamplingStrategy(concurrency_budget=4)))
"""

from typing import Any

from sampling._arguments import check_bool, check_instance, check_number
from sampling.budgets import Budget
from sampling.errors import BudgetExceeded, MissingExtra
from sampling.strategy import BaseSamplingStrategy

try:
    from mellea.core import Backend, SamplingResult, SamplingStrategy
    from mellea.core import Context as MelleaContext
    from mellea.core import Requirement as MelleaRequirement
except ImportError as _error:
    raise MissingExtra("MelleaStrategy", "mellea", "mellea") from _error

from sampling.compat._mellea_backend import MelleaCall
from sampling.compat._mellea_results import translate_result

__all__ = ["MelleaStrategy"]


class MelleaStrategy(SamplingStrategy):
    """
    Wrap a strategy for use as the `strategy=` of a mellea session.

    Actions, contexts, requirements and results are mellea's. Attempts, repairs, votes and selection are ours:
    when one answer wins, the requests of the others are closed, and the server stops generating.
    """

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        *,
        budget: Budget | None = None,
        stream: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        """
        Wrap a strategy.

        Args:
            strategy: The strategy, with its own requirements and hooks.

            budget: A limit that all calls of this object share.

            stream: Stream the answers, because some servers notice a disconnected client only while they stream.
                Turn it off for components that can't be streamed, such as intrinsics.

            timeout_s: The time limit of one request.
        """
        check_instance("strategy", strategy, BaseSamplingStrategy, "a strategy of sampling")
        if budget is not None:
            check_instance("budget", budget, Budget, "a Budget or None")
        self.strategy: BaseSamplingStrategy = strategy
        self.budget: Budget | None = budget
        self.stream: bool = check_bool("stream", stream)
        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)

    @property
    def loop_budget(self) -> int:
        """The depth of the strategy."""
        return self.strategy.loop_budget

    @property
    def concurrency_budget(self) -> int:
        """The breadth of the strategy."""
        return self.strategy.concurrency_budget

    async def sample(  # noqa: PLR0913 - the signature is mellea's
        self,
        action: Any,
        context: MelleaContext,
        backend: Backend,
        requirements: list[MelleaRequirement] | None,
        *,
        validation_ctx: MelleaContext | None = None,
        format: Any = None,  # noqa: A002 - mellea's name
        model_options: dict[str, Any] | None = None,
        tool_calls: bool = False,
        show_progress: bool = True,
    ) -> SamplingResult[Any]:
        """
        Sample an action of mellea with our strategy.

        The requirements of the strategy are checked first, then those of the call. `show_progress` has no effect: the
        progress displays of this library are hooks.

        Raises:
            BudgetExceeded: The budget ended the call before there was an answer.
        """
        call = MelleaCall(
            action,
            context,
            backend,
            validation_ctx=validation_ctx,
            format=format,
            tool_calls=tool_calls,
            model_options=model_options or {},
            stream=self.stream,
        )
        await call.prepare()
        result = await self.strategy.sample(
            call.question(),
            call.conversation(),
            call.as_backend(self.timeout_s),
            # Like mellea, check a requirement once that is in the list twice.
            [call.requirement(one, self.timeout_s) for one in dict.fromkeys(requirements or ())],
            options=call.options(),
            budget=self.budget,
        )
        if result.best is None:
            raise BudgetExceeded(f"no answer before the end of the call: {result.stop_detail or result.stop_reason}")
        return translate_result(result, call)

    def __repr__(self) -> str:
        return f"MelleaStrategy({self.strategy!r})"
