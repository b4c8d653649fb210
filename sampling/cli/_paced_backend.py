"""Show the answers of a fast model slowly."""

import anyio

from sampling.backends.layers._layer import Layer, Receive
from sampling.messages import Generation, Request
from sampling.protocols import StreamingBackend

__all__ = ["PacedBackend"]


class PacedBackend(Layer):
    """
    A backend that replays every answer slowly.

    The embedded model is too fast to read along.
    """

    def __init__(self, inner: StreamingBackend, *, tokens_per_s: float) -> None:
        super().__init__(inner)
        self._streaming = inner
        self._token_s = 1 / tokens_per_s

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        # Generate first: the model answers at full speed, and only the display is slow.
        pieces: list[str] = []
        generation = await self._streaming.stream(request, pieces.append)
        for piece in pieces:
            await anyio.sleep(self._token_s)
            if receive is not None:
                receive(piece)
        return generation
