"""
Backends made of what you have: a litellm function, a LangChain chat model, a pydantic-ai model, an OpenAI client.

    backend = from_openai_client(AsyncOpenAI(), model="gpt-5-mini")
    result = await strategy.sample("A haiku about rain", None, backend)

Each asks for a stream, also when only the whole text is wanted: closing a stream is what stops a server that generates.
What a library raises comes out as the error of ours that says the same, so strategies and layers know what to do.
None of the libraries is imported before you hand over something of it, and none is closed: what you opened is yours.

Every library has retries of its own, which multiply with those of others. Where it can be said with a request,
they are turned off (the OpenAI client, litellm); turn them off yourself where not, and use one layer for them.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast, final

import anyio

from sampling._arguments import check_instance, check_number, wrong_type
from sampling.backends.adapters._answers import Pieces, Receive, read_chunks, read_langchain
from sampling.backends.adapters._errors import translated
from sampling.backends.adapters._pydantic_ai import PydanticAIModel
from sampling.backends.adapters._requests import (
    as_dicts,
    body_for,
    check_loop,
    check_roles,
    known_and_extra,
    options_of,
)
from sampling.errors import BackendError, Timeout
from sampling.messages import Generation, Request

__all__ = ["AdaptedBackend", "from_langchain", "from_litellm", "from_openai_client", "from_pydantic_ai"]

_TIMEOUT_S = 600.0


def from_openai_client(client: Any, *, model: str | None = None, timeout_s: float = _TIMEOUT_S) -> "AdaptedBackend":
    """
    Make a backend of an `openai.AsyncOpenAI` client.

    Args:
        client: The client, with its key, address and transport as they are; only its own retries are turned off.

        model: Which model to ask where `Options` name none.

        timeout_s: How long a request may take in all.
    """
    try:
        quiet = client.with_options(max_retries=0)
        create = quiet.chat.completions.create
        names = frozenset(inspect.signature(create).parameters)
    except AttributeError:
        raise wrong_type("client", client, "an openai.AsyncOpenAI") from None
    max_tokens_name = "max_completion_tokens" if "api.openai.com" in str(client.base_url) else "max_tokens"

    async def ask(request: Request, receive: Receive) -> Generation:
        arguments = known_and_extra(body_for(request, model, max_tokens_name), names)
        return await read_chunks(await create(**arguments), request, receive)

    return AdaptedBackend("openai", ask, timeout_s)


def from_litellm(
    acompletion: Callable[..., Awaitable[Any]], *, timeout_s: float = _TIMEOUT_S, **defaults: Any
) -> "AdaptedBackend":
    """
    Make a backend of `litellm.acompletion`, or of a function that takes and returns what it does. It needs asyncio.

    Args:
        acompletion: The function, such as that of a `litellm.Router`.

        timeout_s: How long a request may take in all.

        defaults: Passed with every call: model, api_base, api_key, … `Options` go over them.
    """
    if not callable(acompletion):
        raise wrong_type("acompletion", acompletion, "a function such as litellm.acompletion")

    async def ask(request: Request, receive: Receive) -> Generation:
        if getattr(acompletion, "__module__", "").startswith("litellm"):
            check_loop("litellm")
        body = body_for(request, cast("str | None", defaults.get("model")), "max_tokens")
        return await read_chunks(await acompletion(**{"max_retries": 0, **defaults, **body}), request, receive)

    return AdaptedBackend("litellm", ask, timeout_s)


def from_langchain(
    chat_model: Any, *, timeout_s: float = _TIMEOUT_S, allow_missing_finish: bool = False
) -> "AdaptedBackend":
    """
    Make a backend of a LangChain chat model.

    Options are passed on under OpenAI's names, which most of LangChain's models share; what is in `Options.extra`
    becomes an argument of the model, so what only the server knows goes into `extra_body` there. It needs asyncio.

    Args:
        chat_model: A `BaseChatModel`, such as `ChatOpenAI(…, max_retries=0)`.

        timeout_s: How long a request may take in all.

        allow_missing_finish: Take an answer for complete although its model does not say why it ended.
    """
    if not callable(getattr(chat_model, "astream", None)):
        raise wrong_type("chat_model", chat_model, "a LangChain chat model")
    # OpenAI's models leave the usage out of streams from other servers than OpenAI's unless they are asked for it.
    asks_for_usage = hasattr(chat_model, "stream_usage")

    async def ask(request: Request, receive: Receive) -> Generation:
        check_loop("LangChain")
        check_roles(request.messages, "LangChain")
        options = options_of(request)
        stop = options.pop("stop", None)
        if asks_for_usage:
            options["stream_usage"] = True
        stream = chat_model.astream(as_dicts(request.messages), stop=stop, **options)
        pieces = await read_langchain(stream, Pieces(request, receive))
        return pieces.generation(allow_missing_finish=allow_missing_finish)

    return AdaptedBackend("langchain", ask, timeout_s)


def from_pydantic_ai(
    model: Any, *, timeout_s: float = _TIMEOUT_S, allow_missing_finish: bool = False
) -> "AdaptedBackend":
    """
    Make a backend of a pydantic-ai model.

    Args:
        model: A `pydantic_ai.models.Model`, such as `OpenAIChatModel(…)`.

        timeout_s: How long a request may take in all.

        allow_missing_finish: Take an answer for complete although its model does not say why it ended.
    """
    if not callable(getattr(model, "request_stream", None)):
        raise wrong_type("model", model, "a pydantic-ai model")
    library = PydanticAIModel(model)

    async def ask(request: Request, receive: Receive) -> Generation:
        pieces = await library.read(request, Pieces(request, receive))
        return pieces.generation(allow_missing_finish=allow_missing_finish)

    return AdaptedBackend("pydantic-ai", ask, timeout_s)


@final
class AdaptedBackend:
    """A backend that asks another library."""

    def __init__(
        self, library: str, ask: Callable[[Request, Receive], Awaitable[Generation]], timeout_s: float
    ) -> None:
        self.library = library
        self.timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._ask = ask

    async def generate(self, request: Request) -> Generation:
        """Answer one request with the whole text; the library streams it all the same."""
        return await self.stream(request, lambda _: None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Answer one request, and give every new piece of text to `receive` as it comes."""
        check_instance("request", request, Request, "a Request")
        if not callable(receive):
            raise wrong_type("receive", receive, "a callable that takes a str")
        watched = _Watched(receive)
        try:
            with anyio.move_on_after(self.timeout_s):
                return await self._ask(request, watched)
            failure: BackendError = Timeout(f"no whole answer of {self.library} within {self.timeout_s:g} s")
        except BackendError:
            raise
        except Exception as error:
            translation = translated(error, self.library)
            if error is watched.raised or translation is None:
                raise
            failure = translation
        # Not in the handler: what the library raised may hold the request and its key, and would hang on to ours.
        raise failure

    def __repr__(self) -> str:
        return f"<AdaptedBackend of {self.library}>"


class _Watched:
    """A receiver of which it is known what it raised: that is not the library's, and goes through as it is."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.raised: BaseException | None = None

    def __call__(self, piece: str) -> None:
        try:
            self._receive(piece)
        except BaseException as error:
            self.raised = error
            raise
