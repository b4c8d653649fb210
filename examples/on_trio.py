"""Sample on trio, with the same code as on asyncio."""

import trio
from toy_model import REQUIREMENTS, ToyModel

from sampling import MultiTurnStrategy


async def main() -> None:
    """Make a call, and cancel a second one with a trio scope."""
    strategy = MultiTurnStrategy(loop_budget=5, concurrency_budget=2)
    print(await strategy.sample("Name three rivers.", None, ToyModel(seed=5, word_s=0.01), REQUIREMENTS))
    with trio.move_on_after(0.1) as scope:
        await strategy.sample("Name three rivers.", None, ToyModel(seed=5, word_s=60), REQUIREMENTS)
    print("The second call was cut off." if scope.cancelled_caught else "The second call was fast.")


if __name__ == "__main__":
    trio.run(main)
