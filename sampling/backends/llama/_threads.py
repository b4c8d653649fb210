"""Run llama.cpp in this process, with one thread per request and no socket."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import anyio
import anyio.from_thread
from anyio.lowlevel import checkpoint, current_token

from sampling.backends.http._transport import Transport, WireRequest, WireResponse
from sampling.backends.llama._process import load_server
from sampling.backends.llama._server import LlamaHost, LlamaSettings, load_error
from sampling.errors import FatalError

__all__ = ["LlamaInProcess", "ThreadTransport"]

_Handler: TypeAlias = Callable[[bytes, Callable[[bytes], bool]], object]
"""Takes a request body and a callback that receives each chunk and returns whether to stop."""


class LlamaInProcess(LlamaHost):
    """A model in this process, with the interface of `LlamaServer`."""

    def __init__(self, settings: LlamaSettings) -> None:
        self.settings = settings
        self._server: Any = None
        # Loading can't be interrupted, so `stop` waits for its end.
        self._loading = threading.Lock()
        self._wanted = False
        """False once stopped, which may happen before the loading thread starts."""

    @property
    def base_url(self) -> str:
        """
        The address of the server that xllamacpp also starts.

        It is not used.
        """
        return f"{self._server.listening_address}/v1"

    @property
    def running(self) -> bool:
        """True while the model is loaded."""
        return self._server is not None

    @property
    def transport(self) -> Callable[[], Transport]:
        """A function that creates transports to the model."""
        # Pass on this object and not the server: the server is unloaded when its last reference is dropped.
        return partial(ThreadTransport, self)

    def handler(self) -> _Handler:
        """Return the function that handles a request."""
        if self._server is None:
            raise FatalError(f"{self.settings.model!r} is no longer loaded")
        return cast("_Handler", self._server.handle_chat_completions)

    def launch(self) -> None:
        """Allow loading. Raise if the model is loaded already."""
        if self._wanted:
            raise RuntimeError("this model is loaded already")
        self._wanted = True

    def wait_until_ready(self) -> None:
        """
        Block until the model is loaded or `stop` is called.

        Raise `FatalError` if it can't be loaded.
        """
        with self._loading:
            if not self._wanted or self._server is not None:
                return
            try:
                self._server = load_server(self.settings.for_process(), quiet=True)
            except RuntimeError as error:
                raise load_error(
                    self.settings, "no reason given. Load it without in_process=True to see one"
                ) from error

    def stop(self) -> None:
        """Unload the model. No request may be running."""
        self._wanted = False
        with self._loading:
            self._server = None


class ThreadTransport:
    """A transport that calls llama.cpp directly."""

    def __init__(self, host: LlamaInProcess) -> None:
        self._host = host

    async def open(self, request: WireRequest) -> WireResponse:
        """Start a thread that generates, and wait for its first chunk."""
        answer = _ThreadResponse(self._host.handler(), request.body)
        try:
            await answer.wait_for_head()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await answer.aclose()
            raise
        return answer

    async def aclose(self) -> None:
        """Do nothing, because there are no connections."""
        await checkpoint()


class _ThreadResponse:
    """
    A response that a thread generates.

    The thread delivers its chunks in the event loop.
    """

    def __init__(self, handle: _Handler, body: bytes) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream"}
        self._loop = current_token()
        self._chunks: list[bytes] = []
        self._changed = anyio.Event()
        self._cancelled = False
        self._ended = False
        self._thread = threading.Thread(target=self._generate, args=(handle, body), name="llama.cpp", daemon=True)
        self._thread.start()

    async def wait_for_head(self) -> None:
        """
        Wait for the first chunk.

        If it is an error, it sets the status of the response.
        """
        await self._wait_for_chunks()
        status = _error_status(self._chunks[0]) if self._chunks else None
        if status is not None:
            self.status = status
            self.headers = {"content-type": "application/json"}

    async def read(self) -> bytes:
        """Return all chunks since the last call, as server-sent events."""
        # Even if there are chunks: a fast model would otherwise never give the loop a chance to cancel.
        await checkpoint()
        await self._wait_for_chunks()
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks if self.status != 200 else [b"data: %b\n\n" % chunk for chunk in chunks])

    async def aclose(self) -> None:
        """
        Stop the thread and wait for its end.

        It checks after every token and every batch of the prompt.
        """
        self._cancelled = True
        while not self._ended:
            await self._wait_for_change()
        self._thread.join()

    async def _wait_for_chunks(self) -> None:
        while not self._chunks and not self._ended:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed = anyio.Event()

    def _take(self, chunk: bytes) -> bool:
        self._chunks.append(chunk)
        self._changed.set()
        return self._cancelled

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    def _generate(self, handle: _Handler, body: bytes) -> None:
        """Generate in the thread."""
        # The return value of the callback tells llama.cpp whether to stop.

        def deliver_chunk(chunk: bytes) -> bool:
            # Once cancelled, there is no need to deliver the chunk to the event loop.
            return self._cancelled or anyio.from_thread.run_sync(self._take, chunk, token=self._loop)

        try:
            handle(body, deliver_chunk)
        finally:
            anyio.from_thread.run_sync(self._end, token=self._loop)


def _error_status(chunk: bytes) -> int | None:
    """Return the status of an error object, or None for other chunks."""
    if not chunk.startswith(b'{"error"'):
        return None
    return int(json.loads(chunk)["error"].get("code", 500))
