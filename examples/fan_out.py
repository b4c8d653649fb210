"""Resume a fan-out after an error, without repeating finished items."""

import tempfile
from pathlib import Path

import anyio
from toy_model import REQUIREMENTS, ToyModel

from sampling import Generation, Journal, MultiTurnStrategy, Request, fan_out

QUESTIONS = [f"Name three rivers. (No. {number})" for number in range(60)]
STRATEGY = MultiTurnStrategy(loop_budget=4)


class Counting:
    """A backend that counts its requests and fails once."""

    def __init__(self, *, breaks_at: int | None = None) -> None:
        self.calls = 0
        self._model = ToyModel(seed=1)
        self._breaks_at = breaks_at

    async def generate(self, request: Request) -> Generation:
        """Answer, or raise at the chosen request."""
        self.calls += 1
        if self.calls == self._breaks_at:
            raise ConnectionError("the line is dead")
        return await self._model.generate(request)


async def main() -> None:
    """Run until the error, then make the same call again."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "run.db")
        first = Counting(breaks_at=90)
        try:
            await fan_out(STRATEGY, QUESTIONS, None, first, REQUIREMENTS, journal=journal, max_concurrency=4)
        except ConnectionError as error:
            done = journal.summary()
            print(f"{error}: {done.succeeded + done.failed} items are in the journal, after {first.calls} calls")

        second = Counting()
        result = await fan_out(STRATEGY, QUESTIONS, None, second, REQUIREMENTS, journal=journal, max_concurrency=4)
        print(f"{result}, after {second.calls} calls more")
        print(result.outcomes[0].result)


if __name__ == "__main__":
    anyio.run(main)
