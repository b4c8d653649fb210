"""A workload that calls a sampling strategy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from sampling._arguments import check_bool, check_instance, check_int, short_repr
from sampling._event_loop import running_loop
from sampling.load.model._about import digest, name_of
from sampling.load.model._prompts import RandomPrompts
from sampling.load.model._workload import Answered, Arrival, Send, current_arrival
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
        turns: int | None = None,
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

            turns: With a conversation, the number of requests after which a user begins a new one.
        """
        check_instance("strategy", strategy, BaseSamplingStrategy, "a strategy")
        self._strategy = strategy
        self._about = _describe(strategy, actions, backend)
        self._next = _action_source(actions)
        self._context = ctx
        self._backend = _FirstTokenBackend(backend) if isinstance(backend, StreamingBackend) else backend
        # Converted once here, not on every request: this is a hot path.
        self._reqs = as_requirements("reqs", reqs)
        self._options = options
        self._conversation = check_bool("conversation", conversation)
        if turns is not None and not conversation:
            raise ValueError("turns needs conversation=True: without it every request is a conversation of its own")
        self._turns = None if turns is None else check_int("turns", turns, least=1)
        self._contexts: dict[int | None, tuple[int, Context]] = {}

    def describe(self) -> Mapping[str, Any]:
        """Return the strategy, its budgets and the backend, for reports."""
        turns = {"turns": self._turns or "unlimited"} if self._conversation else {}
        return {**self._about, **turns, "requirements": digest([each.description for each in self._reqs])}

    def draw(self, arrival: Arrival) -> Send | None:
        """Draw the next action, or None at the end."""
        action = self._next(arrival)
        return None if action is None else lambda: self._ask(arrival, action)

    async def _ask(self, arrival: Arrival, action: Action[Any] | str) -> Answered:
        context = self._context_of(arrival)
        result: SamplingResult[Any] = await self._strategy.sample(
            action, context, self._backend, self._reqs, options=self._options
        )
        if self._conversation and result.best is not None:
            self._contexts[arrival.user] = self._conversation_of(arrival), result.best.context
        return Answered(
            valid=result.success,
            input_tokens=result.usage.input_tokens,
            output_tokens=result.usage.output_tokens,
            cost=result.usage.cost,
            requests=sum([attempt.requests for attempt in result.attempts]),
        )

    def _context_of(self, arrival: Arrival) -> Context | None:
        # Its first request may have failed or, in a mix, been of another operation: then nothing is known of it yet.
        conversation, context = self._contexts.get(arrival.user, (None, None))
        return context if conversation == self._conversation_of(arrival) else self._context

    def _conversation_of(self, arrival: Arrival) -> int:
        """Return the number of earlier conversations of this user."""
        return 0 if self._turns is None else arrival.number // self._turns


strategy_workload = StrategyWorkload
"""The function-style name: `strategy_workload(strategy, actions, ctx, backend, reqs)`."""


class _FirstTokenBackend:
    """A backend that records the time of the first token, and the times between tokens."""

    def __init__(self, backend: StreamingBackend) -> None:
        self._backend = backend

    async def generate(self, request: Request) -> Generation:
        return await self._backend.stream(request, _TokenTimes())

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        return await self._backend.stream(request, _TokenTimes(receive))


class _TokenTimes:
    """
    A receiver that records the times of tokens.

    Several requests of a call may stream at once, so each has its own times between tokens.
    """

    def __init__(self, receive: Callable[[str], None] | None = None) -> None:
        self._receive = receive
        self._arrival = current_arrival()
        self._clock = running_loop().time
        self._last_at: float | None = None

    def __call__(self, text: str) -> None:
        if self._arrival is not None:
            now = self._clock()
            self._arrival.first_token()
            if self._last_at is not None:
                self._arrival.add_gap(now - self._last_at)
            self._last_at = now
        if self._receive is not None:
            self._receive(text)


def _describe(strategy: BaseSamplingStrategy, actions: object, backend: object) -> dict[str, Any]:
    """Describe the calls and the backend, in JSON types."""
    given = cast("Sequence[object]", actions) if isinstance(actions, Sequence) else None
    questions = [actions] if isinstance(actions, str) else given
    asked = str(actions) if isinstance(actions, RandomPrompts) else None
    if questions is not None:
        asked = digest(map(str, questions))
    return {
        "workload": "strategy",
        "strategy": type(strategy).__name__,
        "loop_budget": strategy.loop_budget,
        "concurrency_budget": strategy.concurrency_budget,
        "backend": _backend_name(backend),
        "model": model if isinstance(model := getattr(backend, "model", None), str) else None,
        "questions": asked,
    }


def _backend_name(backend: object) -> str:
    """Return the class and the address of a backend. Its repr would differ between two runs."""
    address = getattr(backend, "base_url", None)
    return f"{name_of(backend)} at {address}" if isinstance(address, str) else name_of(backend)


def _action_source(actions: Actions) -> Callable[[Arrival], Action[Any] | str | None]:
    """Return a function that returns the next action."""
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
