"""`LlamaBackend`, for GGUF models that llama.cpp runs on this machine."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from os import PathLike
from types import TracebackType
from typing import Self, TypeAlias, final

import anyio
import anyio.to_thread
import attrs
from anyio.lowlevel import current_token

from sampling._arguments import check_bool, check_instance, check_number
from sampling.backends.llama._server import LlamaServer
from sampling.backends.llama._threads import LlamaInProcess
from sampling.backends.openai._backend import OpenAIBackend, OpenAIGeneration
from sampling.errors import BackendError, ConnectFailed, ConnectionLost, FatalError, ModelNotFound
from sampling.messages import Request

__all__ = ["LlamaBackend"]

Host: TypeAlias = LlamaServer | LlamaInProcess
"""The place where the model is loaded."""

_EXIT_GRACE_S = 0.5
"""The time that a killed process may outlive its connections."""


@final
class LlamaBackend:
    """
    A backend that runs a model on this machine.

    async with LlamaBackend("qwen3-4b-q4.gguf") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

    Without a path it is the embedded model, half a megabyte that can do a little arithmetic and nothing else:

        async with LlamaBackend() as backend:
            result = await strategy.sample("What is 347 + 286?", None, backend)

    The model is loaded on the way in and unloaded on the way out; a plain `with` does as well, for `sample_sync`.

    `Options(schema=…)` constrains decoding to a JSON schema or a pydantic model, and `Options(extra={"grammar": …})`
    to a grammar in GBNF, llama.cpp's notation: then the answer has that form whatever the model would rather say.

    By default the model runs in a process of its own, behind a port of the loopback interface that only this backend
    has the key to. A model that crashes or runs out of memory takes nothing with it there, and its threads do not
    compete with the event loop for the interpreter. With `in_process=True` it is loaded into this process,
    for where no other can be started. Cancelling stops the generation in both: between two tokens,
    or while the prompt is read, between two pieces of it.
    """

    def __init__(
        self,
        model_path: str | PathLike[str] | None = None,
        *,
        slots: int = 8,
        context_tokens: int = 4_096,
        threads: int | None = None,
        gpu_layers: int | None = None,
        timeout_s: float = 600.0,
        startup_timeout_s: float = 300.0,
        in_process: bool = False,
    ) -> None:
        """
        Validate the arguments. Nothing is loaded before the backend is opened.

        Args:
            model_path: A GGUF file; None for the embedded model.

            slots: How many requests are answered at once; further ones wait.

            context_tokens: How long each conversation may get, its answer included.

            threads: How many threads compute; None leaves it to llama.cpp. For the embedded model it is one.

            gpu_layers: How many layers go to the GPU; None leaves it to llama.cpp, which takes as many as fit.

            timeout_s: How long a request may take in all, once it has a slot.

            startup_timeout_s: How long loading may take.

            in_process: Load the model into this process instead of one of its own.
        """
        server = LlamaServer(
            model_path,
            slots=slots,
            context_tokens=context_tokens,
            threads=threads,
            gpu_layers=gpu_layers,
            startup_timeout_s=startup_timeout_s,
        )
        self._settings = server.settings
        self._host: Host = LlamaInProcess(server.settings) if check_bool("in_process", in_process) else server
        self._timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._client: OpenAIBackend | None = None
        self._slots: anyio.Semaphore | None = None
        self._loop: object = None

    @property
    def model(self) -> str:
        """The name of the model: its file name without the extension."""
        return self._settings.model

    # Life.

    async def __aenter__(self) -> Self:
        self._host.launch()
        try:
            await anyio.to_thread.run_sync(self._host.wait_until_ready, abandon_on_cancel=True)
            self._client = await self._new_client().__aenter__()
        except BaseException:
            await self._unload()  # noqa: ASYNC102 - it shields itself
            raise
        self._slots = anyio.Semaphore(self._settings.slots)
        self._loop = current_token()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        self._slots = self._loop = None
        try:
            if client is not None:
                await client.__aexit__(kind, error, traceback)  # noqa: ASYNC102 - it shields its own cleanup
        finally:
            await self._unload()  # noqa: ASYNC102 - it shields itself

    async def _unload(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._host.stop)

    def __enter__(self) -> Self:
        self._host.__enter__()
        # Only for its settings: what is sent without an event loop that is known here, goes through one of its own.
        self._client = self._new_client()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client = None
        self._host.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        state = "open" if self._client is not None else "not open"
        return f"<LlamaBackend {self.model!r}, {self._settings.slots} slots, {state}>"

    def _new_client(self) -> OpenAIBackend:
        return OpenAIBackend(
            self._host.base_url,
            self._settings.api_key.reveal(),
            self.model,
            timeout_s=self._timeout_s,
            max_connections=2 * self._settings.slots,
            # llama.cpp closes every connection after a stream and does not say so: one that is used again may be gone.
            headers={"connection": "close"},
            transport=self._host.transport,
        )

    # Requests.

    async def generate(self, request: Request) -> OpenAIGeneration:
        """Return the whole answer."""
        async with self._slot(), self._client_for_loop() as client, self._detect_process_exit():
            return await client.generate(self._prepare(request))

    async def stream(self, request: Request, receive: Callable[[str], None]) -> OpenAIGeneration:
        """Return the answer, and pass each new piece of text to `receive`."""
        async with self._slot(), self._client_for_loop() as client, self._detect_process_exit():
            return await client.stream(self._prepare(request), receive)

    def _slot(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that waits for a slot. A request that waits inside llama.cpp can't be cancelled."""
        if self._slots is not None and self._loop == current_token():
            return self._slots
        return nullcontext()

    @asynccontextmanager
    async def _client_for_loop(self) -> AsyncGenerator[OpenAIBackend]:
        """Yield the client of this event loop. Another loop, as in `sample_sync`, gets one per request."""
        if self._client is None:
            raise RuntimeError("this LlamaBackend is not open: use it inside `async with`")
        if self._loop == current_token():
            yield self._client
        else:
            async with self._new_client() as client:
                yield client

    def _prepare(self, request: Request) -> Request:
        check_instance("request", request, Request, "a Request")
        options = request.options
        if options.model not in {None, self.model}:
            raise ModelNotFound(
                f"this backend has loaded {self.model!r}, and no model called {options.model!r}",
                hint="Leave options.model out, or open another LlamaBackend with that model.",
            )
        # Reports while the prompt is read are the only moments in it at which llama.cpp notices a cancellation:
        # without them, 8 cancelled prompts of 15,000 tokens kept their slots for 10 s; with them, for 0.2 s.
        extra = {"return_progress": True, **options.extra}
        return attrs.evolve(request, options=attrs.evolve(options, extra=extra))

    @asynccontextmanager
    async def _detect_process_exit(self) -> AsyncGenerator[None]:
        """Turn a connection error into a `FatalError` if the server process has ended."""
        try:
            yield
        except BackendError as error:
            if error.retryable and await self._process_exited(error):  # noqa: ASYNC120 - a cancellation is the news then
                raise FatalError(
                    f"the process that ran {self.model!r} has ended",
                    hint="Open the backend again; is there memory enough?",
                ) from error
            raise

    async def _process_exited(self, error: BackendError) -> bool:
        """Return whether the process has ended, which shows a moment after its connections break."""
        if isinstance(error, ConnectionLost | ConnectFailed):
            with anyio.move_on_after(_EXIT_GRACE_S):  # noqa: ASYNC912 - nothing to wait for if it has ended
                while self._host.running:  # noqa: ASYNC110 - the end of a process sets no event
                    await anyio.sleep(0.01)
        return not self._host.running
