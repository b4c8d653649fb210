"""Translate error responses into typed errors: status, error object and Retry-After."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import attrs

from sampling._json.bounded import loads
from sampling._redaction import Redactor
from sampling.backends.http._fields import Json
from sampling.errors import (
    AnswerRejected,
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
    "Arrearage": 402,
    "account_deactivated": 401,
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "billing_hard_limit_reached": 402,
    "billing_not_active": 402,
    "budget_exceeded": 402,
    "capacity_exceeded": 503,
    "context_length_exceeded": 400,
    "exceeded_current_quota_error": 402,
    "insufficient_balance": 402,
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "json_validate_failed": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "requests": 429,
    "timeout_error": 504,
    "tokens": 429,
    "tool_use_failed": 400,
}

# Patterns are compiled on first use, because most programs see none of these errors.

# Codes of OpenAI's Responses API, vLLM, llama.cpp and Azure that are about the request, whatever else they may name.
_ABOUT_REQUEST = (
    r"(?i)(?:bad_?request|content_filter|data_residency|empty_image|exceed_context|failed_to_download_image|image_|invalid_"
    r"|unsupported_|\w+_policy)"
)

# Where only the message tells that it is about the account: Anthropic, Gemini, xAI, OpenRouter, Fireworks, litellm.
_ABOUT_ACCOUNT = (
    r"(?i)\bcredit balance is too low\b|\b(?:insufficient|run out of|have any) (?:credits|balance|funds)\b"
    r"|\bfree-models-per-day\b|\breached your specified (?:workspace )?API usage limits\b"
    r"|\bcredits are depleted\b|\bexceeded its monthly spending cap\b|\baccount \S{1,100} is suspended\b"
    r"|\bBudget has been exceeded!"
)

# Where an error without a code, inside a stream or with status 200, is about the request: LM Studio and TGI.
_STATUS_OF_MESSAGE = (
    (r"Unexpected endpoint or method\b", 404),
    (r"(?:Input validation|Template) error\b", 422),
    (r"(?i)[^\n]{0,300}?\b(?:greater than the|loaded with|exceeds? the|maximum) context (?:length|window)\b", 400),
)

_UNKNOWN_MODEL_CODES = frozenset(
    {"DeploymentNotFound", "deployment_not_found", "model_not_available", "model_not_found", "unknown_model"}
)

_UNKNOWN_MODEL = r"(?i)\b(?:invalid|unknown|no such) model\b|\bnot a valid model\b|\bmodel not (?:exist|found)\b"
# A 404 may also mean that the path is missing, and a path may have "model" in its name.
_MISSING_MODEL = (
    r"(?i)(?<![/\w])models?\b[^\n]{0,200}?\bnot (?:exist|found|available)\b|^model: \S+$|\bno endpoints found for\b"
)
_MAX_SEARCHED = 2_000
_GOOGLE_DELAY = r"(\d{1,9}(?:\.\d{1,9})?)s"

# The server checked what the model wrote, and refused it. Another sample may pass.
_REJECTED_ANSWER_CODES = frozenset({"json_validate_failed", "output_parse_failed", "tool_use_failed"})

# The words for a schema that a server can't make a grammar of, also behind a gateway: Anthropic, Gemini, vLLM and
# llama.cpp. The sizes of grammars are not documented. Models of OpenAI, Groq and DeepSeek may take no schema at all.
_SCHEMA_REFUSED = (
    r"(?i)\bcompiled grammar is too large\b|\btoo many (?:optional parameters|parameters with union types)\b"
    r"|\btoo complex for (?:grammar )?compilation\b|\btoo many states for serving\b"
    r"|\bfeatures not supported by xgrammar\b|\bfailed to parse grammar\b"
    r"|\bof type 'json_schema' is not supported with this model\b"
    r"|\bdoes not support response format `json_schema`|\bresponse_format type is unavailable\b"
)

# Request timeout, conflict, TGI's failed generation, too early, Groq's lack of capacity, and a proxy that gave up:
# another try may succeed.
_RETRYABLE_4XX = frozenset({408, 409, 424, 425, 498, 499})


@attrs.frozen
class ErrorResponse:
    """An error response."""

    status: int
    message: str
    """The message of the server, redacted and shortened."""

    codes: tuple[str, ...] = ()
    is_moderation: bool = False
    """True if the moderation of a gateway refused the input. The error is about the request, not the key."""

    param: str = ""
    """The parameter that the error is about, if the server names one."""

    failed_generation: str | None = None
    """The text of the model that the server refused."""

    searched: str = attrs.field(default="", repr=False)
    """The beginning of the message, as the server wrote it."""

    retry_after_s: float | None = None
    target: str = ""
    """The host that a redirect leads to. The rest of the URL may hold secrets."""

    @classmethod
    def from_response(cls, status: int, headers: Mapping[str, str], body: bytes, redactor: Redactor) -> "ErrorResponse":
        """Parse a response with an error status."""
        try:
            parsed: object = loads(body.decode("utf-8", "replace"))
        except ValueError:
            parsed = body
        # Gemini wraps its error in a list.
        first = [*cast("list[object]", parsed), None][0] if isinstance(parsed, list) else parsed
        fields = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
        found = cls.from_error_object(fields.get("error", fields), redactor)
        # Some servers send null or an empty object, which says nothing.
        said = body if fields.get("error", first) else b""
        return attrs.evolve(
            found,
            status=status,
            message=found.message or redactor.sample(said),
            searched=found.searched or body[:_MAX_SEARCHED].decode("utf-8", "replace"),
            retry_after_s=found.retry_after_s if (wait_s := retry_after_s(headers)) is None else wait_s,
            target=redactor.sample(_host(headers.get("location", ""))),
        )

    @classmethod
    def from_error_object(cls, error: object, redactor: Redactor) -> "ErrorResponse":
        """
        Parse an error object, as in a stream.

        Without a known code, it counts as a server error.
        """
        fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        message = error if isinstance(error, str) else _message(fields)
        codes, details = _codes(fields), _google_details(fields)
        status = next((int(c) for c in codes if c.isdecimal() and 400 <= int(c[:4]) <= 599), None)
        known = next((_STATUS_OF_CODE[code] for code in codes if code in _STATUS_OF_CODE), None)
        known = known or (400 if any(re.match(_ABOUT_REQUEST, code) for code in codes) else _status_of_message(message))
        failed = fields.get("failed_generation")
        return cls(
            status or known,
            redactor.sample(message),
            (*codes, *_reasons(details)),
            is_moderation="flagged_input" in _metadata(fields),
            param=param if isinstance(param := fields.get("param"), str) else "",
            failed_generation=failed if isinstance(failed, str) else None,
            searched=message[:_MAX_SEARCHED],
            retry_after_s=_retry_delay_s(details),
        )

    def refuses_parameter(self, name: str) -> bool:
        """Return whether the server refused the request because of this parameter."""
        if self.status not in {400, 422}:
            return False
        return self.param == name or re.search(rf"(?<!\w){name}(?!\w)", self.searched) is not None

    @property
    def refuses_schema(self) -> bool:
        """True if the server can't enforce the schema of the answer."""
        return self.status == 400 and re.search(_SCHEMA_REFUSED, self.searched) is not None

    def as_error(self) -> BackendError:
        """Return the exception to raise."""
        error = self._error(self._describe())
        error.status = self.status
        error.partial_text = self.failed_generation or None
        return error

    def _describe(self) -> str:
        return f"the server answered {self.status}" + (f": {self.message}" if self.message else "")

    def _error(self, message: str) -> BackendError:
        if self.failed_generation is not None or not _REJECTED_ANSWER_CODES.isdisjoint(self.codes):
            return AnswerRejected(message)
        if 300 <= self.status < 400:
            return Redirected(f"the server answered {self.status}, a redirect to {self.target}")
        # 501: the server can't do what is asked, now or later.
        if (self.status >= 500 and self.status != 501) or self.status in _RETRYABLE_4XX:
            return ServerError(message, retry_after_s=self.retry_after_s)
        if self.status >= 400:
            return self._refused(message)
        return MalformedResponse(message)

    def _refused(self, message: str) -> BackendError:
        # OpenAI sends an exhausted quota as a 429. Only the code tells it from a rate limit.
        if self.status == 402 or any(_STATUS_OF_CODE.get(code) == 402 for code in self.codes):
            return QuotaExhausted(message)
        if re.search(_ABOUT_ACCOUNT, self.searched):
            return QuotaExhausted(message)
        # A limit for a day is not over before the call is, whatever the delay says.
        if self.status == 429 and any("PerDay" in code for code in self.codes):
            return QuotaExhausted(message)
        if self.status == 429:
            return RateLimited(message, retry_after_s=self.retry_after_s)
        if self.status in {401, 403, 407} and not self.is_moderation:
            return AuthenticationFailed(message)
        return self._bad_request(message)

    def _bad_request(self, message: str) -> BackendError:
        if self._is_about_model():
            return ModelNotFound(message)
        if self.status == 404:
            return BadRequest(message, hint="There is no API at this address. Check base_url: most end in /v1.")
        if self.status == 413:
            return RequestTooLarge(message)
        return BadRequest(message)

    def _is_about_model(self) -> bool:
        if not _UNKNOWN_MODEL_CODES.isdisjoint(self.codes):
            return True
        if self.status in {400, 404} and re.search(_UNKNOWN_MODEL, self.searched):
            return True
        return self.status == 404 and re.search(_MISSING_MODEL, self.searched) is not None


def _status_of_message(message: str) -> int:
    """Return the status that the words of an error stand for, or 500 if they say nothing about the request."""
    return next((status for pattern, status in _STATUS_OF_MESSAGE if re.match(pattern, message)), 500)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "another path of the same host"
    except ValueError:
        return "an invalid address"


def _message(fields: Mapping[str, Any]) -> str:
    """Return the message of an error object, including that of the provider behind a gateway."""
    given = next((v for n in ("message", "detail", "error") if isinstance(v := fields.get(n), str)), "")
    raw = _metadata(fields).get("raw")
    if isinstance(raw, str) and raw:
        return f"{given}: {raw}"
    return given or _details(fields)


def _details(fields: Mapping[str, Any]) -> str:
    """Return the problems that FastAPI servers list, among them Mistral's, as text."""
    inner: Any = fields.get("message", fields)
    listed: Any = cast("Json", inner).get("detail") if isinstance(inner, dict) else None
    given = cast("list[object]", listed) if isinstance(listed, list) else []
    items = [cast("Json", item) for item in given if isinstance(item, dict)]
    return "; ".join([f"{'.'.join(map(str, item.get('loc') or ()))}: {item.get('msg')}" for item in items])


def _metadata(fields: Mapping[str, Any]) -> Json:
    """Return what OpenRouter adds to an error."""
    metadata = fields.get("metadata")
    return cast("Json", metadata) if isinstance(metadata, dict) else {}


def _codes(fields: Mapping[str, Any]) -> list[str]:
    return [str(v) for n in ("code", "type") if isinstance(v := fields.get(n), str | int) and len(str(v)) <= 100]


def _google_details(fields: Mapping[str, Any]) -> list[Json]:
    """Return the details that Google adds to an error, also in its OpenAI-compatible API."""
    details = fields.get("details")
    items = cast("list[object]", details) if isinstance(details, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]


def _reasons(details: list[Json]) -> list[str]:
    """Return the reasons and the ids of the quotas that the details name."""
    found = [detail.get("reason") for detail in details]
    for detail in details:
        violations = detail.get("violations")
        items = cast("list[object]", violations) if isinstance(violations, list) else []
        found += [cast("Json", item).get("quotaId") for item in items if isinstance(item, dict)]
    return [name for name in found if isinstance(name, str) and len(name) <= 100]


def _retry_delay_s(details: list[Json]) -> float | None:
    """Return the delay of a google.rpc.RetryInfo."""
    for detail in details:
        found = re.fullmatch(_GOOGLE_DELAY, given) if isinstance(given := detail.get("retryDelay"), str) else None
        if found is not None and math.isfinite(wait_s := float(found[1])):
            return min(wait_s, MAX_RETRY_AFTER_S)
    return None


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
    if not text:
        return None
    # Rarely needed, and slow to import.
    from email.utils import parsedate_to_datetime  # noqa: PLC0415

    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max((date - now).total_seconds(), 0.0)
