"""Share one budget between concurrent calls."""

import anyio
from toy_model import REQUIREMENTS, ToyModel

from sampling import Budget, MultiTurnStrategy, Options


async def main() -> None:
    """Ask ten questions at once, until their common budget is spent."""
    strategy = MultiTurnStrategy(loop_budget=5, concurrency_budget=2)
    model = ToyModel(seed=3, word_s=0.002)
    budget = Budget(tokens=2_000, deadline_s=30)

    async def ask(number: int) -> None:
        question = f"Name three rivers. (No. {number})"
        result = await strategy.sample(
            question, None, model, REQUIREMENTS, budget=budget, options=Options(max_tokens=20)
        )
        print(f"No. {number}: {result}")

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(ask, number)
    print(budget)


if __name__ == "__main__":
    anyio.run(main)
