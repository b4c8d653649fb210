"""Make a first call, with a function as backend and a function as check."""

import anyio

from sampling import Context, MultiTurnStrategy, Request


async def ask(request: Request) -> str:
    """Stand in for a model that is wrong at first and right after feedback."""
    await anyio.sleep(0.05)
    return "Rhine, Danube, Elbe" if len(request.messages) > 1 else "The Rhine and the Danube."


def names_three(text: str) -> bool:
    """Exactly three rivers."""
    return text.count(",") == 2


async def main() -> None:
    """Ask for three rivers, with depth 3 and breadth 4."""
    strategy = MultiTurnStrategy(loop_budget=3, concurrency_budget=4)
    result = await strategy.sample("Name three rivers, comma separated.", Context(), ask, [names_three])
    print(result)


if __name__ == "__main__":
    anyio.run(main)
