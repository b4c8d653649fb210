"""Translate errors of other libraries into ours, by HTTP status or by the name of their class."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import attrs

from sampling._redaction import Redactor
from sampling.backends.http._errors import ErrorResponse, retry_after_s
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    ConnectFailed,
    ConnectionLost,
    FatalError,
    MalformedResponse,
    ModelNotFound,
    RateLimited,
    ServerError,
    Timeout,
    Unsupported,
)

__all__ = ["translate_error"]

# By name, so that no library has to be installed: openai, litellm, LangChain, pydantic-ai, anthropic, httpx.
_NOT_REACHED = frozenset(
    {"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "ClientConnectorError", "gaierror"}
)
_NOT_SENT = frozenset({"UnsupportedParamsError"})
"""Errors that have a status although no server sent it."""

_TRANSPORT_KINDS: Mapping[str, type[BackendError]] = {
    "APITimeoutError": Timeout,
    "ModelTimeoutError": Timeout,
    "ModelRequestTimeout": Timeout,
    "TimeoutException": Timeout,
    "TimeoutError": Timeout,
    "APIConnectionError": ConnectionLost,
    "ModelConnectionError": ConnectionLost,
    "TransportError": ConnectionLost,
    # Google and Amazon have errors of this name too, which are about the request.
    "aiohttp.ClientError": ConnectionLost,
    "OSError": ConnectionLost,
}
_KINDS: Mapping[str, type[BackendError]] = {
    "RateLimitError": RateLimited,
    "ModelRateLimitError": RateLimited,
    "AuthenticationError": AuthenticationFailed,
    "ModelAuthenticationError": AuthenticationFailed,
    "PermissionDeniedError": AuthenticationFailed,
    "ModelPermissionDeniedError": AuthenticationFailed,
    "NotFoundError": ModelNotFound,
    "ModelNotFoundError": ModelNotFound,
    "UnsupportedParamsError": Unsupported,
    "BadRequestError": BadRequest,
    "ContextOverflowError": BadRequest,
    "ModelInvalidRequestError": BadRequest,
    "ModelRequestRejectedError": BadRequest,
    "UserError": BadRequest,
    "InternalServerError": ServerError,
    "ModelServerError": ServerError,
    "ModelUnavailableError": ServerError,
    "APIResponseValidationError": MalformedResponse,
    "UnexpectedModelBehavior": MalformedResponse,
    "OutputParserException": MalformedResponse,
    # An error in the middle of a stream, without further detail.
    "APIError": ServerError,
    "ModelAPIError": ServerError,
    # Raised by libraries for a role, an option or a model that they don't know.
    "ValueError": BadRequest,
    "TypeError": BadRequest,
    "NotImplementedError": BadRequest,
}


def translate_error(error: Exception, library: str) -> BackendError | None:
    """Return the equivalent `BackendError`, or None if there is none."""
    status = None if type(error).__name__ in _NOT_SENT else _status(error)
    message = f"{library} raised {type(error).__name__}: {Redactor().sample(str(error))}"
    if (missing := _missing_package(error)) is not None:
        return FatalError(message, hint=f"{library} needs the package {missing!r}: install it.")
    if status is None or status >= 500:
        # Some libraries report every failure as a 500, but the true cause is still in the chain.
        kind = next((kind for link in _chain(error) if (kind := _kind(_TRANSPORT_KINDS, link)) is not None), None)
        if kind is not None:
            return ConnectFailed(message) if kind is ConnectionLost and _never_connected(error) else kind(message)
    if status is not None:
        return _refusal(error, status)
    kind = _kind(_KINDS, error)
    return None if kind is None else kind(message)


def _missing_package(error: Exception) -> str | None:
    """Return the package that the library failed to import. litellm calls that a lost connection."""
    for link in _chain(error):
        # Other ones were handled, or the error would not quote them.
        if isinstance(link, ImportError) and link.name and str(link) in str(error):
            return link.name.partition(".")[0]
    return None


def _status(error: Exception) -> int | None:
    """Return the HTTP status, which every library keeps in a different place."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        # botocore
        metadata: Mapping[str, Any] = cast("Mapping[str, Any]", response).get("ResponseMetadata") or {}
        return _valid_status(metadata.get("HTTPStatusCode"))
    given = (getattr(error, "status_code", None), getattr(error, "code", None), getattr(response, "status_code", None))
    return next(filter(None, map(_valid_status, given)), None)


def _valid_status(status: object) -> int | None:
    return status if type(status) is int and 300 <= status <= 599 else None


def _kind(kinds: Mapping[str, type[BackendError]], error: BaseException) -> type[BackendError] | None:
    for kind in type(error).__mro__:
        for name in (kind.__name__, f"{kind.__module__.partition('.')[0]}.{kind.__name__}"):
            if name in kinds:
                return kinds[name]
    return None


def _never_connected(error: BaseException) -> bool:
    return any(kind.__name__ in _NOT_REACHED for link in _chain(error) for kind in type(link).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _refusal(error: Exception, status: int) -> BackendError:
    refusal = ErrorResponse.from_error_object(getattr(error, "body", None) or {"message": str(error)}, Redactor())
    refusal = attrs.evolve(
        refusal,
        status=status,
        message=refusal.message or Redactor().sample(str(error)),
        retry_after_s=retry_after_s(_headers(error)),
    )
    return refusal.as_error()


def _headers(error: Exception) -> dict[str, str]:
    """Return the response headers, which every library keeps in a different attribute."""
    of_litellm = getattr(error, "litellm_response_headers", None)
    of_response = getattr(getattr(error, "response", None), "headers", None)
    headers: Any = of_litellm or of_response or getattr(error, "headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()}
