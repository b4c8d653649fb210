"""Use a sentence as a requirement, which a model judges."""

import anyio

from sampling import RepairTemplateStrategy, Request


async def poet_and_critic(request: Request) -> str:
    """Stand in for a model that writes a line, and that judges one."""
    asked = request.messages[-1].content
    await anyio.sleep(0.05)
    if "Is the requirement met?" in asked:
        return "yes" if "silver" in asked else "no\nIt needs a metaphor."
    return "Rain, silver thread by thread" if "metaphor" in asked else "It rains."


def is_short(text: str) -> bool:
    """At most 40 characters."""
    return len(text) <= 40


async def main() -> None:
    """Ask for a poetic line."""
    strategy = RepairTemplateStrategy(loop_budget=3)
    result = await strategy.sample("A line about rain.", None, poet_and_critic, ["it is poetic", is_short])
    print(result.explain())


if __name__ == "__main__":
    anyio.run(main)
