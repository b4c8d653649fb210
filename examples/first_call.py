"""The first call: a plain async function, a plain string, a plain check."""

import anyio

from sampling import Context, MultiTurnStrategy, Request


async def ask(request: Request) -> str:
    """Stand in for a model: careless at first, better once it is told what was wrong."""
    await anyio.sleep(0.05)
    return "Rhine, Danube, Elbe" if len(request.messages) > 1 else "The Rhine and the Danube."


def names_three(text: str) -> bool:
    """Exactly three rivers."""
    return text.count(",") == 2


async def main() -> None:
    """Ask for three rivers, up to three deep and four wide."""
    strategy = MultiTurnStrategy(loop_budget=3, concurrency_budget=4)
    result = await strategy.sample("Name three rivers, comma separated.", Context(), ask, [names_three])
    print(result)


if __name__ == "__main__":
    anyio.run(main)
