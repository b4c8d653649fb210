"""`GeminiBackend`, for Google's Gemini API."""

import re
from typing import Unpack, final
from urllib.parse import quote

from sampling._arguments import check_bool, check_str
from sampling._redaction import clears_locals
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.gemini._answer import StreamedGeminiAnswer
from sampling.backends.gemini._errors import GeminiErrorResponse
from sampling.backends.gemini._request import MISSING_OPTIONS, gemini_body, model_path
from sampling.backends.gemini._thinking import can_think
from sampling.backends.http._address import GEMINI
from sampling.backends.http._body import encode_json
from sampling.backends.http._chat_backend import ChatBackend
from sampling.backends.http._settings import HttpSettings
from sampling.backends.http._streamed import StreamedResponse
from sampling.messages import Request
from sampling.parts import Media

__all__ = ["GeminiBackend"]

_API_VERSION = re.compile(r"v[0-9][a-z0-9]{0,20}")


@final
class GeminiBackend(ChatBackend):
    """
    A backend for Google's Gemini API.

    Use GEMINI_API_KEY or GOOGLE_API_KEY:

        async with GeminiBackend("gemini-2.5-flash") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

    Thought signatures go back to Gemini with the conversation, as the API requires for tool calls.

    Connections, streaming, limits and errors are those of `OpenAIBackend`. The backend never retries.
    Models before Gemini 3 refuse `structured="native"` beside tools.
    """

    @clears_locals
    def __init__(
        self,
        model: str | None = None,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        api_version: str = "v1beta",
        include_thoughts: bool = False,
        allow_missing_finish: bool = False,
        **settings: Unpack[HttpSettings],
    ) -> None:
        """
        Validate the arguments. Nothing is sent before the first request.

        Args:
            model: The model, unless `Options` name one, such as "gemini-2.5-flash" or "tunedModels/mine".
                By default GEMINI_MODEL.

            api_key: The key. By default GEMINI_API_KEY or GOOGLE_API_KEY, which are sent to a base_url given here
                only with `send_env_key=True`. It is sent in a header, never in the URL.

            base_url: The address of the API, without a version. By default GOOGLE_GEMINI_BASE_URL, else
                https://generativelanguage.googleapis.com. It must be https, except on this machine.

            api_version: The version of the API. Most features appear first in "v1beta".

            include_thoughts: Request summaries of the thoughts, for `Generation.reasoning`. Models that do not think
                refuse it.

            allow_missing_finish: Accept an answer without a finishReason as complete.

            settings: Connections, limits and other settings of all backends for HTTP APIs.
        """
        check_bool("include_thoughts", include_thoughts)
        check_bool("allow_missing_finish", allow_missing_finish)
        check_str("api_version", api_version)
        if not _API_VERSION.fullmatch(api_version):
            raise ValueError(f"api_version must be a version such as 'v1beta' or 'v1', got {api_version!r}")
        super().__init__(
            GEMINI,
            base_url,
            api_key,
            model,
            **settings,
        )
        if self.base_url.endswith(f"/{api_version}"):
            raise ValueError(f"base_url must end before '/{api_version}', which is added to it, got {self.base_url!r}")
        self.api_version = api_version
        self._include_thoughts = include_thoughts
        self._allow_missing_finish = allow_missing_finish
        self._support = Support("the Gemini API", (*TEXT_PARTS, Media), MISSING_OPTIONS, self._drop_unsupported)

    _error_type = GeminiErrorResponse

    def _described(self) -> list[str]:
        return [*super()._described(), f"api_version={self.api_version!r}"]

    def _supported(self, request: Request) -> Request:
        effort, model = request.options.reasoning_effort, request.options.model or self.model
        if effort is None or model is None or can_think(model, effort):
            return super()._supported(request)
        return self._support.check(request, {"reasoning_effort": f"{effort!r} for {model}"})

    def _url(self, model: str) -> str:
        path = quote(model_path(model), safe="/")
        return f"{self.base_url}/{self.api_version}/{path}:streamGenerateContent?alt=sse"

    def _key_header(self, key: str) -> tuple[str, str]:
        return "x-goog-api-key", key

    def _body(self, request: Request, model: str) -> bytes:
        body = gemini_body(request, model, self._structured_for(request), include_thoughts=self._include_thoughts)
        return encode_json(body, self.max_request_bytes)

    def _new_answer(self, request: Request, input_tokens_estimate: int) -> StreamedResponse:
        return StreamedGeminiAnswer(self._redactor, input_tokens_estimate=input_tokens_estimate)
