"""Sample from the embedded model, without a key, a network or a download."""

import anyio

from sampling import MajorityVotingStrategy, Options, RejectionSamplingStrategy
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama.models.arithmetic import Question
from sampling.strategies.keys import number

QUESTION = Question(347, "+", 286)


async def main() -> None:
    """Compare a single answer, a majority vote and a checked answer."""
    once = RejectionSamplingStrategy()
    vote = MajorityVotingStrategy(number)
    checked = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4)
    async with LlamaBackend() as model:
        for name, strategy, requirements in (
            ("once", once, []),
            ("vote", vote, []),
            ("checked", checked, [QUESTION.requirement]),
        ):
            result = await strategy.sample(
                QUESTION.text, None, model, requirements, options=Options(temperature=1.0, max_tokens=64)
            )
            print(f"{name:<8}{'right' if QUESTION.is_right(result.text or '') else 'wrong':<6} {result}")


if __name__ == "__main__":
    anyio.run(main)
