"""Race agents that use tools, within one budget."""

from collections.abc import Sequence

import anyio

from sampling import (
    Budget,
    Generation,
    Message,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    ToolCall,
    ToolLoop,
    ToolResult,
    Usage,
    View,
)

RIVERS_KM = {"Rhine": 1_233, "Elbe": 1_094, "Danube": 2_850}


async def length_km(river: str) -> int:
    """
    Look up the length of a river.

    Args:
        river: The English name.
    """
    await anyio.sleep(0.01)
    return RIVERS_KM[river]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def results_in(messages: Sequence[Message]) -> list[ToolResult]:
    """Return the results of all tools."""
    return [part for message in messages for part in message.content if isinstance(part, ToolResult)]


async def model(request: Request) -> Generation:
    """Stand in for a model. Every third one guesses, and one asks for a river that is not there."""
    used = Usage(input_tokens=20 * len(request.messages), output_tokens=10)
    results = results_in(request.messages)
    await anyio.sleep(0.01 * (1 + request.subsample))
    if request.subsample % 3 == 0:
        return Generation("About 2000 km.", used)
    if not results:
        rivers = ("Rhine", "Elba" if request.subsample == 1 else "Elbe")
        calls = [ToolCall(f"look_{river}", "length_km", f'{{"river": "{river}"}}') for river in rivers]
        return Generation("", used, "tool_calls", tool_calls=calls)
    if any(result.is_error for result in results):
        return Generation("I don't know.", used)
    if len(results) == 2:
        numbers = f'{{"a": {results[0].text}, "b": {results[1].text}}}'
        return Generation("", used, "tool_calls", tool_calls=[ToolCall("sum", "add", numbers)])
    return Generation(f"{results[-1].text} km.", used)


def added_up(text: str, view: View) -> tuple[bool, str]:
    """Check that the number in the answer is one that the tool `add` returned."""
    results = results_in(view.generation.turns)
    return any(part.id == "sum" and part.text in text for part in results), "add the lengths up with a tool"


async def main() -> None:
    """Ask six agents at once, and take the first answer that was really added up."""
    agent = ToolLoop(model, [length_km, add], max_rounds=4)
    budget = Budget(requests=50)
    strategy = RejectionSamplingStrategy(concurrency_budget=6)
    requirement = Requirement("the lengths are added up", added_up)
    result = await strategy.sample("How long are Rhine and Elbe together?", None, agent, [requirement], budget=budget)
    print(result.value)
    for message in result.best.context.messages if result.best else ():
        print(f"  {message.role}: {message.content}")
    print(f"{budget.requests_made} requests, {result.usage.total_tokens} tokens, losers included")


if __name__ == "__main__":
    anyio.run(main)
