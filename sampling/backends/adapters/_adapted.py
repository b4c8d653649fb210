"""The backend that all adapters return."""

from collections.abc import Awaitable, Callable
from typing import final

import anyio

from sampling._arguments import check_instance, check_number, wrong_type
from sampling._serialization.messages import digest
from sampling.backends._structured import Structured, answer_from_tool, check_structured, without_schema
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.adapters._answers import Receive
from sampling.backends.adapters._errors import translate_error
from sampling.backends.layers._identity import identity_of
from sampling.errors import BackendError, Timeout
from sampling.messages import Generation, Request
from sampling.parts import Media

__all__ = ["DEFAULT_TIMEOUT_S", "AdaptedBackend"]

DEFAULT_TIMEOUT_S = 600.0


@final
class AdaptedBackend:
    """A backend that calls another client library."""

    def __init__(
        self,
        library: str,
        ask: Callable[[Request, Receive], Awaitable[Generation]],
        timeout_s: float,
        *,
        support: Support | None = None,
        structured: Structured = "native",
    ) -> None:
        self.library = library
        self.provider_name: str = library
        """The provider in traces: the library, because only it knows which server it asks."""

        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)
        self.structured: Structured = check_structured(structured)
        self._ask = ask
        self._support = Support(library, (*TEXT_PARTS, Media)) if support is None else support

    async def generate(self, request: Request) -> Generation:
        """
        Return the whole answer.

        The library still streams it, so that cancelling stops the server.
        """
        return await self.stream(request, lambda _: None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Return the answer, and pass each new piece of text to `receive`."""
        check_instance("request", request, Request, "a Request")
        if not callable(receive):
            raise wrong_type("receive", receive, "a callable that takes a str")
        request = self._support.check(request)
        recording = _RecordingReceiver(receive)
        generation = await self._call(without_schema(request, self.structured), recording)
        if self.structured != "tool" or request.options.schema is None:
            return generation
        answered = answer_from_tool(generation, request.options)
        if answered is not generation and answered.text:
            receive(answered.text)
        return answered

    async def _call(self, request: Request, recording: "_RecordingReceiver") -> Generation:
        """Call the library, and raise its errors as ours."""
        try:
            with anyio.move_on_after(self.timeout_s):
                return await self._ask(request, recording)
            failure: BackendError = Timeout(f"no complete answer from {self.library} within {self.timeout_s:g} s")
        except BackendError:
            raise
        except Exception as error:
            translation = translate_error(error, self.library)
            if error is recording.raised or translation is None:
                raise
            failure = translation
        # Raised outside the handler: the library's error may hold the request and its key.
        raise failure

    def fingerprint(self) -> str:
        """Return the model behind the library, for caches."""
        return digest([self.library, *identity_of(self._ask)])

    def __repr__(self) -> str:
        return f"<AdaptedBackend of {self.library}>"


class _RecordingReceiver:
    """Remembers what `receive` raised, so that it is not mistaken for an error of the library."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.raised: BaseException | None = None

    def __call__(self, piece: str) -> None:
        try:
            self._receive(piece)
        except BaseException as error:
            self.raised = error
            raise
