"""`OpenAIEmbeddings`, for servers with the OpenAI API."""

import json
from typing import Any, NoReturn, final

import anyio

from sampling._arguments import check_bool, check_number, check_str
from sampling._json.bounded import loads
from sampling._redaction import Redactor, clears_locals
from sampling.backends.http._address import resolve_address
from sampling.backends.http._default_transport import default_transport
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.http._transport import CLOSE_GRACE_S, Transport, WireRequest, WireResponse
from sampling.errors import MalformedResponse, ResponseTooLarge, Timeout

__all__ = ["OpenAIEmbeddings"]

_MAX_BYTES = 4 * 1024 * 1024


@final
class OpenAIEmbeddings:
    """
    Computes embeddings with the OpenAI API.

        MBRStrategy(EmbeddingSimilarity(OpenAIEmbeddings(model="text-embedding-3-small")))

    It raises the same errors as `OpenAIBackend`. It keeps no connection open, so it needs no closing.
    """

    @clears_locals
    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str,
        timeout_s: float = 60.0,
        send_env_key: bool = False,
        allow_http: bool = False,
    ) -> None:
        """Validate the arguments, which are those of `OpenAIBackend`."""
        check_bool("send_env_key", send_env_key)
        check_bool("allow_http", allow_http)
        self._address = resolve_address(
            base_url, api_key, send_env_key=send_env_key, allow_http=allow_http, allowed_hosts=None
        )
        self.model: str = check_str("model", model, empty=False)
        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)
        self._redactor = Redactor([self._address.key] if self._address.key else [])
        self._new_transport = default_transport(
            self._address.base_url, max_connections=1, connect_timeout_s=min(10.0, self.timeout_s)
        )

    async def __call__(self, text: str) -> tuple[float, ...]:
        """Return the embedding of a text."""
        body = json.dumps({"model": self.model, "input": check_str("text", text), "encoding_format": "float"}).encode()
        transport = self._new_transport()
        try:
            with anyio.move_on_after(self.timeout_s):
                return self._parse_embedding(await self._exchange(transport, body))
            raise Timeout(f"no embedding within {self.timeout_s:g} s")
        finally:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await transport.aclose()

    async def _exchange(self, transport: Transport, body: bytes) -> bytes:
        headers = {"accept-encoding": "identity", "content-type": "application/json", "user-agent": "sampling"}
        if self._address.key is not None:
            headers["authorization"] = f"Bearer {self._address.key.reveal()}"
        # Nothing to do when it is sent, because the usage of embeddings is not reported.
        wire = WireRequest(f"{self._address.base_url}/embeddings", headers, body, lambda: None)
        response = await transport.open(wire)
        try:
            response_body = await _read(response)
            if response.status != 200:
                raise ErrorResponse.from_response(
                    response.status, response.headers, response_body, self._redactor
                ).as_error()
            return response_body
        finally:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await response.aclose()

    def _parse_embedding(self, response_body: bytes) -> tuple[float, ...]:
        try:
            data: Any = loads(response_body.decode("utf-8", "replace"))
            vector = data["data"][0]["embedding"]
            return tuple([float(number) for number in vector])
        except (ValueError, KeyError, IndexError, TypeError):
            raise MalformedResponse(f"no embedding in the response: {self._redactor.sample(response_body)}") from None

    def __repr__(self) -> str:
        return f"<OpenAIEmbeddings {self._address.base_url!r}, model={self.model!r}, key {self._address.key_source}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an OpenAIEmbeddings can't be pickled or copied: it holds a key. Create a new one.")


async def _read(response: WireResponse) -> bytes:
    body = b""
    while data := await response.read():
        body += data
        if len(body) > _MAX_BYTES:
            raise ResponseTooLarge(f"the response has more than {_MAX_BYTES:,} bytes")
    return body
