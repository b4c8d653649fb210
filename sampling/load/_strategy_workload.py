"""A workload that calls a sampling strategy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from sampling._arguments import check_bool, check_instance, short_repr
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
    """A workload whose requests are calls of `strategy.sample`."""

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
        Take the arguments of `sample`, which every request shares.

        Args:
            strategy: The strategy to call.

            actions: The actions to send. A list is cycled through, and each user of a closed loop starts at a
                different item. An iterator is consumed, and the run ends with it. A function receives the arrival
                and returns the action.

            ctx: The conversation so far, for every request.

            backend: The backend to call. If it streams, the time to first token is measured too.

            reqs: The requirements that make an answer valid.

            options: Options for every request.

            conversation: Keep the conversation of each user from one request to the next.
        """
        check_instance("strategy", strategy, BaseSamplingStrategy, "a strategy")
        self._strategy = strategy
        self._next = _action_source(actions)
        self._context = ctx
        self._backend = _FirstTokenBackend(backend) if isinstance(backend, StreamingBackend) else backend
        # Converted once here, not on every request: this is a hot path.
        self._reqs = as_requirements("reqs", reqs)
        self._options = options
        self._conversation = check_bool("conversation", conversation)
        self._contexts: dict[int | None, Context] = {}

    def draw(self, arrival: Arrival) -> Send | None:
        """Draw the next action, or None at the end."""
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
"""The function-style name: `strategy_workload(strategy, actions, ctx, backend, reqs)`."""


class _FirstTokenBackend:
    """A backend that records the time of the first token."""

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
    """Return a function that gives the next action."""
    if isinstance(actions, str | Action):
        return _cycle((cast("Action[Any] | str", actions),))
    if callable(actions):
        return actions
    if isinstance(actions, Sequence):
        return _cycle(actions)
    if isinstance(actions, Iterator):
        return lambda _: next(actions, None)
    raise TypeError(
        f"actions must be a list of actions, an iterator of them, or a function of an arrival, "
        f"got {short_repr(actions)} ({type(actions).__name__})"
    )


def _cycle(actions: Sequence[Action[Any] | str]) -> Callable[[Arrival], Action[Any] | str]:
    if not actions:
        raise ValueError("actions must not be empty: there is nothing to ask")

    def nth(arrival: Arrival) -> Action[Any] | str:
        start = 0 if arrival.user is None else arrival.user
        return actions[(start + arrival.number) % len(actions)]

    return nth
