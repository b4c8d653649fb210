"""Where load and sampling meet: a workload that makes the very calls that the application makes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from sampling._arguments import check_bool, check_instance, shown
from sampling.load.model._workload import Answered, Arrival, Send, first_token
from sampling.messages import Action, Context, Generation, Options, Request
from sampling.protocols import BackendLike, StreamingBackend
from sampling.requirements import RequirementLike, as_requirements
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy

__all__ = ["StrategyWorkload", "strategy_workload"]

T = TypeVar("T")

Actions = Sequence[Action[Any] | str] | Iterable[Action[Any] | str] | Callable[[Arrival], Action[Any] | str]


class StrategyWorkload:
    """A workload of a strategy: each request is one call of `sample`, valid, invalid or failed."""

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        actions: Actions,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        conversation: bool = False,
    ) -> None:
        """
        Take what `sample` takes, for every request.

        Args:
            strategy: How to ask.

            actions: What to ask. A list is gone through again and again, by each user of a closed loop from a place
                of its own; an iterator is used up, and the run ends with it; a function gets the arrival and returns
                the action.

            ctx: The conversation so far, for every request.

            backend: Whom to ask. If it streams, the time to the first token is measured too.

            reqs: What must be true of an answer for it to be valid.

            options: For every request.

            conversation: Let what a user asked and was answered add up, instead of starting afresh every time.
        """
        check_instance("strategy", strategy, BaseSamplingStrategy, "a strategy")
        self._strategy = strategy
        self._next = _action_source(actions)
        self._context = ctx
        self._backend = _FirstTokenBackend(backend) if isinstance(backend, StreamingBackend) else backend
        # Once, and not for every request.
        self._reqs = as_requirements("reqs", reqs)
        self._options = options
        self._conversation = check_bool("conversation", conversation)
        self._contexts: dict[int | None, Context] = {}

    def draw(self, arrival: Arrival) -> Send | None:
        """Take the next action; None if there is none left."""
        action = self._next(arrival)
        return None if action is None else lambda: self._ask(arrival, action)

    async def _ask(self, arrival: Arrival, action: Action[Any] | str) -> Answered:
        context = self._contexts.get(arrival.user, self._context) if self._conversation else self._context
        result: SamplingResult[Any] = await self._strategy.sample(
            action, context, self._backend, self._reqs, options=self._options
        )
        if self._conversation and result.best is not None:
            self._contexts[arrival.user] = result.best.context
        return Answered(
            valid=result.success,
            input_tokens=result.usage.input_tokens,
            output_tokens=result.usage.output_tokens,
            cost=result.usage.cost,
            requests=sum([attempt.requests for attempt in result.attempts]),
        )


strategy_workload = StrategyWorkload
"""The name to call it by: `strategy_workload(strategy, actions, ctx, backend, reqs)`."""


class _FirstTokenBackend:
    """A backend that says when the first text of an answer comes."""

    def __init__(self, backend: StreamingBackend) -> None:
        self._backend = backend

    async def generate(self, request: Request) -> Generation:
        return await self._backend.stream(request, _on_piece)

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        def stamp_and_receive(text: str) -> None:
            first_token()
            receive(text)

        return await self._backend.stream(request, stamp_and_receive)


def _on_piece(_text: str) -> None:
    first_token()


def _action_source(actions: Actions) -> Callable[[Arrival], Action[Any] | str | None]:
    """Return the function that gives the next action."""
    if isinstance(actions, str | Action):
        return _cycle((cast("Action[Any] | str", actions),))
    if callable(actions):
        return actions
    if isinstance(actions, Sequence):
        return _cycle(actions)
    if isinstance(actions, Iterator):
        return lambda _: next(actions, None)
    raise TypeError(
        f"actions must be a list of actions, an iterator of them, or a function of an arrival, got {shown(actions)} "
        f"({type(actions).__name__})"
    )


def _cycle(actions: Sequence[Action[Any] | str]) -> Callable[[Arrival], Action[Any] | str]:
    if not actions:
        raise ValueError("actions must not be empty: there is nothing to ask")

    def nth(arrival: Arrival) -> Action[Any] | str:
        start = 0 if arrival.user is None else arrival.user
        return actions[(start + arrival.number) % len(actions)]

    return nth
