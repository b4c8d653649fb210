"""`AnthropicBackend`, for Anthropic's Messages API."""

import ssl
from collections.abc import Callable, Collection, Mapping
from typing import final, get_args

from sampling._arguments import check_int, check_str, short_repr
from sampling._redaction import clears_locals
from sampling.backends._structured import Structured
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.anthropic._answer import StreamedMessage
from sampling.backends.anthropic._batches import AnthropicBatches
from sampling.backends.anthropic._request import Cache, Settings, Thinking, messages_body, structured_mode
from sampling.backends.http._address import ANTHROPIC
from sampling.backends.http._batches import BatchClient
from sampling.backends.http._body import encode_json
from sampling.backends.http._chat_backend import MIB, ChatBackend
from sampling.backends.http._streamed import StreamedResponse
from sampling.backends.http._transport import Transport
from sampling.messages import Request
from sampling.parts import File, Image

__all__ = ["AnthropicBackend"]

# The version that removed temperature, top_p and top_k: a request with one of them is refused.
_WITHOUT_SAMPLING = "2026-10-21"
_SAMPLING_OPTIONS = ("temperature", "top_p", "top_k")
_MISSING_OPTIONS = ("seed", "min_p", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs")


@final
class AnthropicBackend(ChatBackend):
    """
    A backend for Anthropic's Messages API.

        async with AnthropicBackend("claude-sonnet-4-6") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

    It is opened, closed and shared as an `OpenAIBackend` is. Every request is streamed, so that the server stops
    generating when the client disconnects. The backend never retries.

    Messages of the roles "system" and "developer" become the system prompt. Signed reasoning goes back to the model
    with the conversation.
    """

    @clears_locals
    def __init__(  # noqa: PLR0913 - each of them is one thing that servers, networks or users differ in
        self,
        model: str | None = None,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        api_version: str = "2023-06-01",
        max_tokens: int = 16_384,
        cache: Cache | None = None,
        thinking: Thinking = "adaptive",
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        max_connections: int = 100,
        max_request_bytes: int = 32 * MIB,
        max_response_bytes: int = 32 * MIB,
        headers: Mapping[str, str] | None = None,
        send_env_key: bool = False,
        allow_http: bool = False,
        allowed_hosts: Collection[str] | None = None,
        public_only: bool = False,
        trust_env: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        drop_unsupported: bool = False,
        structured: Structured = "native",
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        """
        Validate the arguments. Nothing is sent before the first request.

        Args:
            model: The model, unless `Options` name one. By default ANTHROPIC_MODEL.

            api_key: The key. By default ANTHROPIC_API_KEY, which is sent to a base_url given here only
                with `send_env_key=True`.

            base_url: The address of the API, before its /v1. By default ANTHROPIC_BASE_URL, else
                https://api.anthropic.com. It must be https, except on this machine.

            api_version: The version of the API, which is sent as anthropic-version. "2023-06-01" has `temperature`,
                `top_p` and `top_k`, although models from Claude Opus 4.7 on refuse them. From "2026-10-21" on, no
                model takes them, and they raise `Unsupported`.

            max_tokens: The limit of an answer, reasoning included, for requests without `Options.max_tokens`.
                The API requires one. Models that allow less refuse the request.

            cache: Cache the prompt at the server, so that repeated prompts cost less: for "5m" or "1h" after their
                last use, or "auto" for the time that the API chooses. Writing to the cache costs more than reading
                the prompt once.

            thinking: How `Options.reasoning_effort` is sent. "adaptive" sends the effort, and the model decides how
                long it thinks. "budget" sends a limit of thinking tokens, for models before Claude 4.6.

            timeout_s: The time limit for a whole request, from waiting for a connection to the last byte of the answer.

            connect_timeout_s: The time limit for connecting.

            max_connections: The maximum number of connections. Further requests wait.

            max_request_bytes: The maximum size of a request. A longer one raises `RequestTooLarge` and is not sent.

            max_response_bytes: The maximum size of a response. A longer one raises `ResponseTooLarge`.

            headers: Headers of every request, such as anthropic-beta. Their values are kept secret, like the key.

            send_env_key: Send ANTHROPIC_API_KEY to the given base_url.

            allow_http: Accept http:// on other machines than this one.

            allowed_hosts: The only hosts that base_url may name. Set it for a base_url that comes from others.

            public_only: Connect only to public addresses.

            trust_env: Use the proxies and the certificate authorities that the environment names.

            ssl_context: The context to verify an https server with, instead of the authorities of the system.

            drop_unsupported: Drop options that the API does not have, such as `seed`, with a warning.
                By default they raise `Unsupported`, and nothing is sent.

            structured: How to ask for an answer that matches `Options.schema`. "native" gives it to the server.
                "tool" makes the model call a tool whose arguments are the answer. "prompt" puts it into the last
                message. What the server can't enforce, such as a recursive type, becomes a tool, and what can't be
                the arguments of a tool goes into the message.

            transport: A function that creates the transport, instead of httpcore2.
        """
        if cache is not None and cache not in get_args(Cache):
            raise ValueError(f"cache must be 'auto', '5m', '1h' or None, got {short_repr(cache)}")
        if thinking not in get_args(Thinking):
            raise ValueError(f"thinking must be 'adaptive' or 'budget', got {short_repr(thinking)}")
        self.api_version: str = check_str("api_version", api_version, empty=False)
        self.max_tokens: int = check_int("max_tokens", max_tokens, least=1)
        super().__init__(
            ANTHROPIC,
            base_url,
            api_key,
            model,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            max_connections=max_connections,
            max_request_bytes=max_request_bytes,
            max_response_bytes=max_response_bytes,
            headers=headers,
            send_env_key=send_env_key,
            allow_http=allow_http,
            allowed_hosts=allowed_hosts,
            public_only=public_only,
            trust_env=trust_env,
            ssl_context=ssl_context,
            drop_unsupported=drop_unsupported,
            structured=structured,
            transport=transport,
        )
        self._settings = Settings(self.max_tokens, self.structured, cache, thinking)
        without = (*_SAMPLING_OPTIONS, *_MISSING_OPTIONS) if api_version >= _WITHOUT_SAMPLING else _MISSING_OPTIONS
        self._support = Support("the Anthropic API", (*TEXT_PARTS, Image, File), without, drop_unsupported)

    def _url(self, model: str) -> str:
        # Many users know base URLs with a /v1 from other APIs.
        return f"{self.base_url.removesuffix('/v1')}/v1/messages"

    def _key_header(self, key: str) -> tuple[str, str]:
        return "x-api-key", key

    def _provider_headers(self) -> Mapping[str, str]:
        return {"anthropic-version": self.api_version}

    def _body(self, request: Request, model: str) -> bytes:
        return encode_json(messages_body(request, model, self._settings), self.max_request_bytes)

    def _batch_body(self, request: Request, model: str) -> bytes:
        return encode_json(messages_body(request, model, self._settings, stream=False), self.max_request_bytes)

    def batch_client(self) -> BatchClient:
        """Return a client of Anthropic's Message Batches API, for `BatchEngine`."""
        return AnthropicBatches(
            self._rest_client(),
            base_url=self.base_url.removesuffix("/v1"),
            where=f"anthropic {self.base_url}",
            max_line_bytes=self.max_response_bytes,
        )

    def _new_answer(self, request: Request, input_tokens_estimate: int) -> StreamedResponse:
        return StreamedMessage(self._redactor, input_tokens_estimate)

    def _structured_for(self, request: Request) -> Structured:
        return structured_mode(request.options, self.structured)
