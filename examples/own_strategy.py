"""Write two strategies, as subclasses that override only their decisions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import anyio
import attrs
from toy_model import REQUIREMENTS, ToyModel

from sampling import Attempt, BaseSamplingStrategy, Budget, Event, Hooks, IterationFinished, Options, Request, Slice

T = TypeVar("T")


class WarmingStrategy(BaseSamplingStrategy):
    """Repeats the question at a higher temperature each time."""

    loop_budget = 4
    concurrency_budget = 2

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Raise the temperature."""
        return attrs.evolve(super().repair(history), options=Options(temperature=0.3 * len(history)))


class AgreementStrategy(BaseSamplingStrategy):
    """Stops when two valid answers agree, and selects that answer."""

    concurrency_budget = 5

    def done(self, slices: Sequence[Slice[Any]]) -> bool:
        """Stop if the newest answer has a second vote."""
        return slices[-1].valid and _votes(slices)[slices[-1].value] >= 2

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Select the most frequent answer."""
        return max(slices, key=lambda one: _votes(slices)[one.value])


def _votes(slices: Sequence[Slice[Any]]) -> Counter[Any]:
    return Counter(one.value for one in slices if one.valid)


hooks = Hooks()


@hooks.on(Event)
def show(event: Event) -> None:
    """Print an event."""
    outcome = event.slice.outcome if isinstance(event, IterationFinished) else ""
    print(f"  {type(event).__name__} {outcome}")


async def vote(request: Request) -> str:
    """Stand in for a model with varying answers and latencies."""
    await anyio.sleep(0.01 * (1 + request.subsample))
    return ("Rhine", "Elbe", "Danube", "Elbe", "Rhine")[request.subsample]


async def main() -> None:
    """Run both, the first one with hooks and a budget."""
    model = ToyModel(seed=2, careful=0.6, word_s=0.01)
    print("WarmingStrategy, with a hook on all events and a budget of 5 attempts:")
    budget = Budget(attempts=5)
    result = await WarmingStrategy().sample("Name three rivers.", None, model, REQUIREMENTS, hooks=hooks, budget=budget)
    print(result)
    print("\nAgreementStrategy, which stops when two answers agree:")
    print(await AgreementStrategy().sample("Name a river.", None, vote))


if __name__ == "__main__":
    anyio.run(main)
