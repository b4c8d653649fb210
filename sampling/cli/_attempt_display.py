"""Show the attempts of a call as they are generated."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio
import attrs
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sampling.backends.layers._layer import Layer, Receive
from sampling.hooks import Hooks, IterationFinished, IterationStarted
from sampling.messages import Generation, Request
from sampling.protocols import StreamingBackend
from sampling.results import Outcome, Slice

__all__ = ["AttemptDisplay"]

_STYLES: dict[Outcome | None, tuple[str, str]] = {
    None: ("…", ""),
    "valid": ("✓", "bold green"),
    "invalid": ("✗", "red"),
    "errored": ("!", "red"),
    "cancelled": ("✂", "dim"),
}
_ENDINGS: dict[Outcome, str] = {"cancelled": "cut off", "valid": "right", "errored": "failed"}


@attrs.define
class _AttemptLine:
    """The line that shows one attempt."""

    number: int
    text: str = ""
    outcome: Outcome | None = None
    remark: str = ""

    def __rich__(self) -> Text:
        mark, style = _STYLES[self.outcome]
        line = Text.assemble((f"  {self.number + 1} {mark} ", style), (self.text, style))
        return line.append(f"   {self.remark}", "dim") if self.remark else line


class AttemptDisplay:
    """
    A live display of the attempts of one call.

    On a terminal, all attempts are shown at once and grow. Elsewhere, each attempt is printed when it ends.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: dict[tuple[int, int], _AttemptLine] = {}
        self._live: Live | None = None

    @contextmanager
    def show(self) -> Generator[Hooks]:
        """Yield hooks that show the attempts of a call."""
        hooks = Hooks()
        hooks.on(IterationStarted)(self._start)
        hooks.on(IterationFinished)(self._finish)
        if not self._console.is_terminal:
            yield hooks
            return
        with Live(console=self._console, get_renderable=self._render, refresh_per_second=20) as self._live:
            yield hooks

    def wrap_backend(self, backend: StreamingBackend, *, tokens_per_s: float) -> "_PacedBackend":
        """Return a backend whose text is shown slowly."""
        return _PacedBackend(backend, self, 1 / tokens_per_s)

    def append(self, subsample: int, attempt: int, piece: str) -> None:
        """Append a piece to the text of an attempt."""
        self._lines[subsample, attempt].text += piece

    def _start(self, event: IterationStarted) -> None:
        self._lines[event.subsample, event.attempt] = _AttemptLine(event.subsample)

    def _finish(self, event: IterationFinished) -> None:
        line = self._lines[event.subsample, event.attempt]
        line.outcome, line.remark = event.slice.outcome, _remark(event.slice)
        if self._live is None:
            self._console.print(line)

    def _render(self) -> Group:
        # Copy the lines, because rich draws in a thread of its own while the call adds more.
        return Group(*(line for _, line in sorted(dict(self._lines).items())))


def _remark(one: Slice[object]) -> str:
    if one.outcome == "invalid":
        failed = [validation for validation in one.validations if not validation.passed]
        # The first sentence of a reason says what is wrong. The rest is advice for the model.
        return "; ".join((validation.reason or validation.complaint).partition(". ")[0] for validation in failed)
    return _ENDINGS[one.outcome]


class _PacedBackend(Layer):
    """
    A backend that replays every answer slowly.

    The embedded model is too fast to read along.
    """

    def __init__(self, inner: StreamingBackend, display: AttemptDisplay, token_s: float) -> None:
        super().__init__(inner)
        self._streaming = inner
        self._display = display
        self._token_s = token_s

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        # Generate first: the model answers at full speed, and only the display is slow.
        pieces: list[str] = []
        generation = await self._streaming.stream(request, pieces.append)
        for piece in pieces:
            await anyio.sleep(self._token_s)
            self._display.append(request.subsample, request.attempt, piece)
            if receive is not None:
                receive(piece)
        return generation
