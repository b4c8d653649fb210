"""Compare a single draw, votes and best-of-n."""

import random

import anyio
import anyio.lowlevel

from sampling import BestOfNStrategy, Generation, MajorityVotingStrategy, RejectionSamplingStrategy, Request, Usage
from sampling.strategies.keys import number

QUESTIONS = [(a, b) for a in range(12, 92, 10) for b in range(7, 87, 8)]


async def toy(request: Request) -> Generation:
    """Stand in for a model that adds, and is sometimes off by one or ten."""
    await anyio.lowlevel.checkpoint()
    die = random.Random(f"{request.messages[-1].content} {request.subsample}")  # noqa: S311 - a toy's die
    a, b = (int(word) for word in request.messages[-1].text.split() if word.isdecimal())
    slip = 0 if die.random() < 0.55 else die.choice([-10, -1, 1, 10])
    return Generation(f"{a} + {b} = {a + b + slip}", Usage(12, 8))


async def main() -> None:
    """Print the accuracy and the tokens of each strategy."""
    strategies = {
        "one draw": RejectionSamplingStrategy(),
        "fixed vote of 9": MajorityVotingStrategy(number, early_stop=False),
        "vote of 9, stops when certain": MajorityVotingStrategy(number),
        "vote of 9, stops at 85 %": MajorityVotingStrategy(number, certainty=0.85),
        "best of 9 by a poor score": BestOfNStrategy(len, concurrency_budget=9),
    }
    for name, strategy in strategies.items():
        right = tokens = 0
        for a, b in QUESTIONS:
            result = await strategy.sample(f"What is {a} + {b} ?", None, toy)
            right += number(result.text) == a + b
            tokens += result.usage.output_tokens
        print(f"{name:31} {right / len(QUESTIONS):4.0%} right, {tokens:5} tokens")


if __name__ == "__main__":
    anyio.run(main)
