"""`AnthropicBackend`, for Anthropic's Messages API."""

from collections.abc import Mapping
from typing import Unpack, final, get_args

import attrs

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
from sampling.backends.http._chat_backend import ChatBackend
from sampling.backends.http._settings import HttpSettings
from sampling.backends.http._streamed import StreamedResponse
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
    with the conversation. In `structured="native"`, a schema that the server can't enforce, such as a recursive type,
    becomes a tool, and one that can't be the arguments of a tool goes into the last message.
    """

    @clears_locals
    def __init__(
        self,
        model: str | None = None,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        api_version: str = "2023-06-01",
        max_tokens: int = 16_384,
        cache: Cache | None = None,
        thinking: Thinking = "adaptive",
        **settings: Unpack[HttpSettings],
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

            settings: Connections, limits and other settings of all backends for HTTP APIs.
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
            **settings,
        )
        self._settings = Settings(self.max_tokens, self.structured, cache, thinking)
        without = (*_SAMPLING_OPTIONS, *_MISSING_OPTIONS) if api_version >= _WITHOUT_SAMPLING else _MISSING_OPTIONS
        self._support = Support("the Anthropic API", (*TEXT_PARTS, Image, File), without, self._drop_unsupported)

    def _url(self, model: str) -> str:
        # Many users know base URLs with a /v1 from other APIs.
        return f"{self.base_url.removesuffix('/v1')}/v1/messages"

    def _key_header(self, key: str) -> tuple[str, str]:
        return "x-api-key", key

    def _provider_headers(self) -> Mapping[str, str]:
        return {"anthropic-version": self.api_version}

    def _body(self, request: Request, model: str) -> bytes:
        return encode_json(messages_body(request, model, self._settings_for(request)), self.max_request_bytes)

    def _batch_body(self, request: Request, model: str) -> bytes:
        settings = self._settings_for(request)
        return encode_json(messages_body(request, model, settings, stream=False), self.max_request_bytes)

    def _settings_for(self, request: Request) -> Settings:
        chosen = self._allowed_structured(request)
        return self._settings if chosen == self.structured else attrs.evolve(self._settings, structured=chosen)

    def batch_client(self) -> BatchClient:
        """Return a client of Anthropic's Message Batches API, for `BatchEngine`."""
        base_url = self.base_url.removesuffix("/v1")
        return AnthropicBatches(
            self._rest_client(),
            base_url=base_url,
            where=f"anthropic {base_url}",
            max_line_bytes=self.max_response_bytes,
        )

    def _new_answer(self, request: Request, input_tokens_estimate: int) -> StreamedResponse:
        return StreamedMessage(self._redactor, input_tokens_estimate)

    def _structured_for(self, request: Request) -> Structured:
        return structured_mode(request.options, self._allowed_structured(request))
