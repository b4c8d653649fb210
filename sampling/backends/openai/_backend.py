"""`OpenAIBackend`, for servers with the OpenAI API: OpenAI, vLLM, llama.cpp, Ollama, TGI, OpenRouter, …"""

from typing import TYPE_CHECKING, Unpack, final, get_args

from sampling._arguments import check_bool, check_str
from sampling._engine.scope import count_request
from sampling._picklable import Picklable
from sampling._redaction import clears_locals
from sampling.backends._deferral import Deferral
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.http._address import AZURE, OPENAI
from sampling.backends.http._chat_backend import ChatBackend, Receiver
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.http._settings import HttpSettings
from sampling.backends.http._streamed import StreamedResponse
from sampling.backends.http._transport import Transport, WireRequest
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._dialects import OPENAI as OPENAI_DIALECT
from sampling.backends.openai._dialects import Dialect, dialect_of
from sampling.backends.openai._endpoints import PATHS, Endpoint, endpoint_url
from sampling.backends.openai._request import encode_body
from sampling.errors import BadRequest, Unsupported
from sampling.messages import Generation, Request
from sampling.parts import Media, Text

if TYPE_CHECKING:
    from sampling.backends.http._batches import BatchClient

__all__ = ["OpenAIBackend"]

_MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")


class _ParameterRefused(Picklable, Exception):
    """The server does not know a parameter by the name under which it was sent."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


@final
class OpenAIBackend(ChatBackend):
    """
    A backend for servers that speak the OpenAI API.

    Use OPENAI_API_KEY, or a server that needs no key, such as vLLM:

        async with OpenAIBackend(model="gpt-5-mini") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

        async with OpenAIBackend("http://127.0.0.1:8000/v1", model="qwen3") as backend:
            ...

    Azure needs the version of its API, and the name of a deployment as the model:

        OpenAIBackend("https://NAME.openai.azure.com", key, model="my-deployment", api_version="2024-10-21")

    Inside `async with`, connections are kept open and shared by all calls of that event loop. Elsewhere,
    as under `sample_sync`, every request opens and closes a connection of its own. That is slower, but leaves
    nothing open.

    Every request is streamed, even if only the whole text is needed: a server notices at once
    that a streaming client has disconnected, and stops generating. The backend never retries.
    """

    @clears_locals
    def __init__(  # noqa: PLR0913 - each of them is one thing that servers, networks or users differ in
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        *,
        endpoint: Endpoint = "chat",
        api_version: str | None = None,
        include_usage: bool = True,
        allow_missing_finish: bool = False,
        check_ids: bool = True,
        split_thinking: bool = True,
        **settings: Unpack[HttpSettings],
    ) -> None:
        """
        Validate the arguments. Nothing is sent before the first request.

        Args:
            base_url: The address of the API, up to and including its /v1. By default OPENAI_BASE_URL, else OpenAI.
                It must be https, except on this machine.

            api_key: The key. By default OPENAI_API_KEY, which is sent to a base_url given here only
                with `send_env_key=True`. A server of your own may need none.

            model: The model, unless `Options` name one. By default OPENAI_MODEL.

            endpoint: "chat" for conversations, "responses" for OpenAI's Responses API, or "completions" for models
                that continue a text. "completions" joins the messages with empty lines.

            api_version: The version of Azure's API, such as "2024-10-21". The model is then the name of a deployment,
                the key is sent as Azure expects it, and AZURE_OPENAI_ENDPOINT and AZURE_OPENAI_API_KEY are the
                defaults of base_url and api_key.

            include_usage: Request the token counts. Turn it off for servers that reject `stream_options`.

            allow_missing_finish: Accept an answer without a finish_reason as complete.

            check_ids: Reject a stream that mixes the chunks of two answers.

            split_thinking: Move a `<think>` block at the beginning of the text to `reasoning`.

            settings: Connections, limits and other settings of all backends for HTTP APIs.
        """
        flags = {
            "include_usage": include_usage,
            "allow_missing_finish": allow_missing_finish,
            "check_ids": check_ids,
            "split_thinking": split_thinking,
        }
        for name, flag in flags.items():
            check_bool(name, flag)
        if endpoint not in get_args(Endpoint):
            raise ValueError(f"endpoint must be 'chat', 'completions' or 'responses', got {endpoint!r}")
        self.api_version: str | None = (
            None if api_version is None else check_str("api_version", api_version, empty=False)
        )
        super().__init__(
            OPENAI if api_version is None else AZURE,
            base_url,
            api_key,
            model,
            **settings,
        )
        self.endpoint: Endpoint = endpoint
        self._include_usage = include_usage
        self._allow_missing_finish = allow_missing_finish
        self._check_ids = check_ids
        # A model that continues a text may be given an open <think> by the caller.
        self._split_thinking = split_thinking and endpoint == "chat"
        self._dialect = dialect_of(self.base_url)
        self._support = _support(endpoint, self._dialect, drop_unsupported=self._drop_unsupported)
        # OpenAI's reasoning models reject `max_tokens`, and compatible servers may not know the new name.
        # If the guess is wrong for a model, the server says so, and the other name is used from then on.
        is_new = endpoint == "chat" and (self._dialect == OPENAI_DIALECT or api_version is not None)
        self._max_tokens_name = _MAX_TOKENS_NAMES[is_new]
        self._max_tokens_name_of: dict[str, str] = {}

    def _described(self) -> list[str]:
        return [*super()._described(), f"endpoint={self.endpoint!r}"]

    def _url(self, model: str) -> str:
        return endpoint_url(self.base_url, self.endpoint, api_version=self.api_version, model=model)

    def _key_header(self, key: str) -> tuple[str, str]:
        return ("authorization", f"Bearer {key}") if self.api_version is None else ("api-key", key)

    def _body(self, request: Request, model: str) -> bytes:
        return self._encoded(request, model, stream=True)

    def _batch_body(self, request: Request, model: str) -> bytes:
        return self._encoded(request, model, stream=False)

    def _encoded(self, request: Request, model: str, *, stream: bool) -> bytes:
        return encode_body(
            request,
            model=model,
            endpoint=self.endpoint,
            max_tokens_name=self._max_tokens_name_of.get(model, self._max_tokens_name),
            include_usage=self._include_usage,
            max_bytes=self.max_request_bytes,
            structured=self._structured_for(request),
            dialect=self._dialect,
            stream=stream,
        )

    def batch_client(self) -> "BatchClient":
        """Return a client of OpenAI's Batch API, for `BatchEngine`."""
        if self.api_version is not None:
            raise Unsupported("batches at Azure are not supported", hint="Use OpenAI's own API, or send them online.")
        from sampling.backends.openai._batches import OpenAIBatches  # noqa: PLC0415 - few programs need it

        return OpenAIBatches(
            self._rest_client(),
            base_url=self.base_url,
            path=PATHS[self.endpoint],
            where=f"openai {self.base_url} {self.endpoint}",
            max_line_bytes=self.max_response_bytes,
        )

    def _new_answer(self, request: Request, input_tokens_estimate: int) -> StreamedResponse:
        if self.endpoint == "responses":
            from sampling.backends.openai._responses_answer import StreamedResponsesAnswer  # noqa: PLC0415 - most servers do not have it

            return StreamedResponsesAnswer(self._redactor, input_tokens_estimate=input_tokens_estimate)
        return StreamedAnswer(
            self._redactor,
            input_tokens_estimate=input_tokens_estimate,
            check_ids=self._check_ids,
            split_thinking=self._split_thinking,
        )

    def _refused(self, refusal: ErrorResponse, wire: WireRequest) -> Exception:
        error = super()._refused(refusal, wire)
        for name in _MAX_TOKENS_NAMES:
            if refusal.refuses_parameter(name) and f'"{name}":'.encode() in wire.body:
                return _ParameterRefused(name, error)
        return error

    async def _defer(self, deferral: Deferral, request: Request, receive: Receiver) -> Generation:
        try:
            return await super()._defer(deferral, request, receive)
        except _ParameterRefused as refused:
            model = self._model_of(request)
            # Another request of the batch may have learned the name by now.
            old, new = _MAX_TOKENS_NAMES
            self._max_tokens_name_of[model] = old if refused.name == new else new
            first = refused.error
        count_request()
        try:
            return await super()._defer(deferral, request, receive)
        except (_ParameterRefused, BadRequest):
            raise first from None

    async def _deliver(
        self, transport: Transport, wire: WireRequest, request: Request, answer: StreamedResponse, receive: Receiver
    ) -> None:
        try:
            await self._exchange(transport, wire, answer, receive)
        except _ParameterRefused as refused:
            await self._send_renamed(transport, request, answer, receive, refused)

    async def _send_renamed(
        self,
        transport: Transport,
        request: Request,
        answer: StreamedResponse,
        receive: Receiver,
        refused: _ParameterRefused,
    ) -> None:
        """Send a request again, with the other name of the refused parameter, and remember the name."""
        model = self._model_of(request)
        if self._max_tokens_name_of.get(model) == refused.name:
            raise refused.error from None
        old, new = _MAX_TOKENS_NAMES
        self._max_tokens_name_of[model] = old if refused.name == new else new
        count_request()
        try:
            await self._exchange(transport, self._wire_request(request, answer), answer, receive)
        except (_ParameterRefused, BadRequest):
            # It is not the name that the server refuses but the value.
            self._max_tokens_name_of[model] = refused.name
            raise refused.error from None


def _support(endpoint: Endpoint, dialect: Dialect, *, drop_unsupported: bool) -> Support:
    if endpoint == "responses":
        # Most servers do not have it.
        from sampling.backends.openai._responses_request import MISSING_OPTIONS  # noqa: PLC0415

        return Support("the OpenAI Responses API", (*TEXT_PARTS, Media), MISSING_OPTIONS, drop_unsupported)
    if endpoint == "completions":
        without = [*dialect.without, "tools", "tool_choice", "reasoning_effort"]
        return Support("the completions API", (Text,), without, drop_unsupported)
    return Support("the OpenAI chat API", (*TEXT_PARTS, Media), dialect.without, drop_unsupported)
