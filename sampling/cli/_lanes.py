"""One call, watched: the text of each subsample as it grows, and how it ends."""

from collections.abc import Generator, Iterator
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

__all__ = ["Stage"]

_STYLES: dict[Outcome | None, tuple[str, str]] = {
    None: ("…", ""),
    "valid": ("✓", "bold green"),
    "invalid": ("✗", "red"),
    "errored": ("!", "red"),
    "cancelled": ("✂", "dim"),
}
_ENDINGS: dict[Outcome, str] = {"cancelled": "cut off", "valid": "right", "errored": "failed"}


@attrs.define
class _Line:
    """One attempt, as it is shown."""

    number: int
    text: str = ""
    outcome: Outcome | None = None
    remark: str = ""

    def __rich__(self) -> Text:
        mark, style = _STYLES[self.outcome]
        line = Text.assemble((f"  {self.number + 1} {mark} ", style), (self.text, style))
        return line.append(f"   {self.remark}", "dim") if self.remark else line


class Stage:
    """
    Where the subsamples of one call appear.

    On a terminal, all of them at once, growing; elsewhere a line for each attempt when it has ended.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: dict[tuple[int, int], _Line] = {}
        self._live: Live | None = None

    @contextmanager
    def lit(self) -> Generator[Hooks]:
        """Show what happens, from the start of the block to its end; give the hooks to the call."""
        hooks = Hooks()
        hooks.on(IterationStarted)(self._start)
        hooks.on(IterationFinished)(self._finish)
        if not self._console.is_terminal:
            yield hooks
            return
        with Live(console=self._console, get_renderable=self._render, refresh_per_second=20) as self._live:
            yield hooks

    def watched(self, backend: StreamingBackend, *, tokens_per_s: float) -> "_Watched":
        """Wrap a backend so that its text appears here, at a pace at which people can read."""
        return _Watched(backend, self, 1 / tokens_per_s)

    def grow(self, subsample: int, attempt: int, piece: str) -> None:
        """Add a piece to the text of an attempt."""
        self._lines[subsample, attempt].text += piece

    def _start(self, event: IterationStarted) -> None:
        self._lines[event.subsample, event.attempt] = _Line(event.subsample)

    def _finish(self, event: IterationFinished) -> None:
        line = self._lines[event.subsample, event.attempt]
        line.outcome, line.remark = event.slice.outcome, _remark(event.slice)
        if self._live is None:
            self._console.print(line)

    def _render(self) -> Group:
        # A copy, for it is drawn in another thread than the one that the call runs in.
        return Group(*self._in_order(dict(self._lines)))

    @staticmethod
    def _in_order(lines: dict[tuple[int, int], _Line]) -> Iterator[_Line]:
        for place in sorted(lines):
            yield lines[place]


def _remark(one: Slice[object]) -> str:
    if one.outcome == "invalid":
        # The first sentence says what is wrong; what follows is for the model.
        return "; ".join(complaint.partition(". ")[0] for complaint in one.complaints)
    return _ENDINGS[one.outcome]


class _Watched(Layer):
    """Shows the text of every answer, more slowly than it comes: a tiny model is done before you can look."""

    def __init__(self, inner: StreamingBackend, stage: Stage, token_s: float) -> None:
        super().__init__(inner)
        self._streaming = inner
        self._stage = stage
        self._token_s = token_s

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        pieces: list[str] = []
        generation = await self._streaming.stream(request, pieces.append)
        for piece in pieces:
            await anyio.sleep(self._token_s)
            self._stage.grow(request.subsample, request.attempt, piece)
            if receive is not None:
                receive(piece)
        return generation
