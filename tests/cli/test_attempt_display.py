"""The live display of one call."""

import io

import pytest
from rich.console import Console

from sampling import Generation, RejectionSamplingStrategy, Request
from sampling.cli._attempt_display import AttemptDisplay


class Counting:
    """Each subsample says its number, the later ones more often."""

    async def generate(self, request: Request) -> Generation:
        return await self.stream(request, lambda _: None)

    async def stream(self, request: Request, receive) -> Generation:
        pieces = [str(request.subsample)] * (2 + 3 * request.subsample)
        for piece in pieces:
            receive(piece)
        return Generation("".join(pieces))


def has_a_one(text: str) -> tuple[bool, str]:
    return "1" in text, "no 1 in it. Say 1."


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(run, request) -> str:
    """Return the display of a call with four attempts, of which the second is valid."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=request.param, width=100, color_system=None)
    display = AttemptDisplay(console)

    async def call() -> None:
        strategy = RejectionSamplingStrategy(concurrency_budget=4)
        backend = display.wrap_backend(Counting(), tokens_per_s=10)
        with display.show() as hooks:
            await strategy.sample("Count!", None, backend, [has_a_one], hooks=hooks)

    run(call)
    return file.getvalue()


def test_every_subsample_is_there_with_its_text_and_how_it_ended(screen):
    """
    The first is wrong, the second right, and the others are cut off where they were at that moment.

    What was wrong is the first sentence of the reason, without the requirement, so that it fits on the line.
    """
    for line in (
        "  1 ✗ 00   no 1 in it",
        "  2 ✓ 11111   right",
        "  3 ✂ 2222",
        "  4 ✂ 3333",
    ):
        assert line in screen
    assert "222222" not in screen
    assert "cut off" in screen
