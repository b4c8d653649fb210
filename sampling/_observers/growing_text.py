"""Report the streamed text of an attempt to the hooks on `TextGrown`."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from sampling.hooks import Emitter, Event, Hook, TextGrown

__all__ = ["GrowingText", "TextChecks"]

T = TypeVar("T")


class TextChecks(Protocol):
    """Checks of the text so far, which raise to stop it."""

    def __call__(self, piece: str) -> None: ...

    def restart(self) -> None: ...


class GrowingText:
    """
    A receiver of streamed text that calls the hooks on `TextGrown`.

    Sync hooks are called at once, by the backend that streams. What grows while async hooks are awaited is joined to
    one piece, so that slow ones hold up nothing and cost no memory.
    """

    restartable = True
    """Layers may send the text once more: `restart` takes back what they sent."""

    def __init__(self, emitter: Emitter, event: Callable[[str, str], TextGrown], checks: TextChecks | None) -> None:
        hooks = emitter.hooks_for(TextGrown)
        self._emitter = emitter
        self._event = event
        """Makes the event of a piece and the text with it."""

        self._checks = checks
        self._sync: tuple[Hook, ...] = tuple(hook for hook in hooks if not hook.is_async)
        self._async: tuple[Hook, ...] = tuple(hook for hook in hooks if hook.is_async)
        self._text = ""
        self._announced = ""
        self._waiting: TextGrown | None = None
        """The text that async hooks have not received yet."""

        self._begun: list[tuple[Hook, Event, Awaitable[object]]] = []
        """What hooks returned that were not declared as async, at most one for each."""

        self._news = anyio.Event()
        self._interruption: BaseException | None = None
        self.raised: BaseException | None = None
        """Kept for a backend that turns the exception of a hook or a check into an error of its own."""

    def __call__(self, piece: str) -> None:
        """Add a piece."""
        if not piece:
            return
        try:
            self._text += piece
            self._announce(piece, self._text)
            if self._checks is not None:
                self._checks(piece)
        except BaseException as error:
            self.raised = error
            raise

    def restart(self) -> None:
        """Forget the text so far. It was not the answer."""
        self._text = ""
        if self._checks is not None:
            self._checks.restart()

    def complete(self, text: str) -> None:
        """Announce what is missing of the whole text: all of it if the backend did not stream."""
        if text != self._announced:
            self._announce(text.removeprefix(self._text), text)

    def _announce(self, piece: str, text: str) -> None:
        self._announced = text
        event = self._event(piece, text)
        if self._async:
            self._waiting = event if self._waiting is None else event.joined_to(self._waiting)
            self._news.set()
        begun: list[tuple[Hook, Awaitable[object]]] = []
        try:
            self._emitter.emit_now(event, self._sync, begun)
        finally:
            for hook, answer in begun:
                # It was not declared as async, and is awaited after the text if there is no task that awaits.
                self._begun.append((hook, event, answer))
                self._sync = tuple(other for other in self._sync if other is not hook)
                self._async += (hook,)
                self._news.set()

    async def while_telling(self, receive: Callable[[], Awaitable[T]]) -> T:
        """Receive the text, and await the async hooks meanwhile. None is still running when this returns."""
        answers: list[T] = []
        failure: BaseException | None = None
        try:
            if not self._async:
                return await receive()
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_telling, group.cancel_scope)
                try:
                    answers.append(await receive())
                except BaseException as error:  # noqa: BLE001, ASYNC103 - raised below, for the group would wrap it
                    failure = error
                group.cancel_scope.cancel()
        finally:
            await self._tell()  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            if self._interruption is not None:
                raise self._interruption
        if failure is not None:
            raise failure
        return answers[0]

    async def _keep_telling(self, receiving: "anyio.CancelScope") -> None:
        while self._interruption is None:
            await self._news.wait()
            self._news = anyio.Event()
            await self._tell()
        receiving.cancel()

    async def _tell(self) -> None:
        begun, self._begun = self._begun, []
        event, self._waiting = self._waiting, None
        try:
            for one in begun:
                await self._emitter.finish(*one)
            if event is not None and self._interruption is None:
                await self._emitter.emit(event, self._async)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised by `while_telling`, in the task of the attempt
            self._interruption = error
