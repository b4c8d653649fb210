"""Translate error responses into typed errors: status, error object and Retry-After."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

import attrs

from sampling._json.bounded import loads
from sampling._redaction import Redactor
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
    Redirected,
    RequestTooLarge,
    ServerError,
)

__all__ = ["MAX_RETRY_AFTER_S", "ErrorResponse", "retry_after_s"]

MAX_RETRY_AFTER_S = 120.0
"""The longest Retry-After that is respected."""

# An error object inside a stream comes with status 200, so its code has to tell the status.
_STATUS_OF_CODE = {
    "authentication_error": 401,
    "billing_hard_limit_reached": 402,
    "context_length_exceeded": 400,
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "requests": 429,
    "tokens": 429,
}

# Request timeout, conflict, and too early: another try may succeed.
_RETRYABLE_4XX = frozenset({408, 409, 425})


@attrs.frozen
class ErrorResponse:
    """An error response."""

    status: int
    message: str
    """The message of the server, redacted and shortened."""

    code: str = ""
    mentions_model: bool = False
    retry_after_s: float | None = None
    target: str = ""
    """The host that a redirect leads to. The rest of the URL may hold secrets."""

    @classmethod
    def from_response(cls, status: int, headers: Mapping[str, str], body: bytes, redactor: Redactor) -> "ErrorResponse":
        """Parse a response with an error status."""
        try:
            parsed = loads(body.decode("utf-8", "replace"))
        except ValueError:
            parsed = None
        fields = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
        message, codes = _message_and_codes(fields.get("error", fields))
        return cls(
            status,
            redactor.sample(message or body),
            _first_known(codes),
            _mentions_model(message, codes),
            retry_after_s(headers),
            redactor.sample(_host(headers.get("location", ""))),
        )

    @classmethod
    def from_error_object(cls, error: object, redactor: Redactor) -> "ErrorResponse":
        """
        Parse an error object inside a stream.

        Without a known code, it counts as a server error.
        """
        message, codes = _message_and_codes(error)
        code = _first_known(codes)
        status = next((int(c) for c in codes if c.isdecimal() and 400 <= int(c[:4]) <= 599), None)
        return cls(
            status or _STATUS_OF_CODE.get(code, 500), redactor.sample(message), code, _mentions_model(message, codes)
        )

    def as_error(self) -> BackendError:
        """Return the exception to raise."""
        error = self._error(self._describe())
        error.status = self.status
        return error

    def _describe(self) -> str:
        return f"the server answered {self.status}" + (f": {self.message}" if self.message else "")

    def _error(self, message: str) -> BackendError:
        if 300 <= self.status < 400:
            return Redirected(f"the server answered {self.status}, a redirect to {self.target}")
        if self.status >= 500 or self.status in _RETRYABLE_4XX:
            return ServerError(message, retry_after_s=self.retry_after_s)
        if self.status >= 400:
            return self._refused(message)
        return MalformedResponse(message)

    def _refused(self, message: str) -> BackendError:
        # OpenAI sends an exhausted quota as a 429. Only the code tells it from a rate limit.
        if self.status == 402 or _STATUS_OF_CODE.get(self.code) == 402:
            return QuotaExhausted(message)
        if self.status == 429:
            return RateLimited(message, retry_after_s=self.retry_after_s)
        if self.status in {401, 403, 407}:
            return AuthenticationFailed(message)
        return self._bad_request(message)

    def _bad_request(self, message: str) -> BackendError:
        if self.code == "model_not_found" or (self.status == 404 and self.mentions_model):
            return ModelNotFound(message)
        if self.status == 404:
            return BadRequest(message, hint="There is no API at this address. Check base_url: most end in /v1.")
        if self.status == 413:
            return RequestTooLarge(message)
        return BadRequest(message)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "another path of the same host"
    except ValueError:
        return "an invalid address"


def _message_and_codes(error: object) -> tuple[str, list[str]]:
    """Return the message and codes of an error object of any shape."""
    if isinstance(error, str):
        return error, []
    if not isinstance(error, dict):
        return "", []
    fields = cast("dict[str, Any]", error)
    message = next((v for n in ("message", "detail", "error") if isinstance(v := fields.get(n), str)), "")
    codes = [str(v) for n in ("code", "type") if isinstance(v := fields.get(n), str | int) and len(str(v)) <= 100]
    return message, codes


def _first_known(codes: list[str]) -> str:
    return next((code for code in codes if code in _STATUS_OF_CODE), "")


def _mentions_model(message: str, codes: list[str]) -> bool:
    return "model_not_found" in codes or "model" in message.lower()


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """
    Return the seconds to wait by the Retry-After header, or None.

    The header holds seconds or a date. A date in the past gives 0, and the maximum is `MAX_RETRY_AFTER_S`.
    """
    wait_s = _number(headers.get("retry-after-ms"), scale=0.001)
    if wait_s is None:
        wait_s = _number(headers.get("retry-after"))
    if wait_s is None:
        wait_s = _seconds_until(headers.get("retry-after"), now or datetime.now(UTC))
    return None if wait_s is None else min(wait_s, MAX_RETRY_AFTER_S)


def _number(text: str | None, scale: float = 1.0) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number * scale if number >= 0 and math.isfinite(number) else None


def _seconds_until(text: str | None, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max((date - now).total_seconds(), 0.0)
