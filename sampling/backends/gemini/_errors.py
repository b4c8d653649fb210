"""Translate the errors of the Gemini API, which are google.rpc.Status objects, into typed errors."""

import math
import re
from collections.abc import Mapping
from typing import Any, cast

import attrs

from sampling._redaction import Redactor
from sampling.backends.http._errors import MAX_RETRY_AFTER_S, ErrorResponse
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    ModelNotFound,
    QuotaExhausted,
    RequestTooLarge,
    ServerError,
)

__all__ = ["GeminiErrorResponse"]

# https://cloud.google.com/apis/design/errors#handling_errors
_STATUS_OF_NAME = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 503,
    "DATA_LOSS": 500,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_ABOUT_KEY = re.compile(r"\bAPI key (?:not valid|expired|not found)\b", re.IGNORECASE)
_ABOUT_ACCOUNT = re.compile(r"\bbilling\b|\blocation is not supported\b|\bfree tier is not available\b", re.IGNORECASE)
# A file or a cached content that does not exist is a 403.
_ABOUT_FILE = re.compile(r"\baccess the File\b|\bCachedContent\b", re.IGNORECASE)
_ABOUT_MODEL = re.compile(r"\bmodels?[/ ][^\n]{0,200}?(?:not found|not supported|no longer available)", re.IGNORECASE)
_TOO_LARGE = re.compile(r"\bpayload size exceeds\b", re.IGNORECASE)
_TOOLS_AND_SCHEMA = re.compile(r"\bresponse mime type\b[^\n]{0,60}\bunsupported\b", re.IGNORECASE)


@attrs.frozen
class GeminiErrorResponse(ErrorResponse):
    """An error response of the Gemini API."""

    @classmethod
    def from_response(
        cls, status: int, headers: Mapping[str, str], body: bytes, redactor: Redactor
    ) -> "GeminiErrorResponse":
        """Parse a response with an error status. The delay in its details counts like a Retry-After."""
        found = cast("GeminiErrorResponse", super().from_response(status, headers, body, redactor))
        if found.retry_after_s is not None or found.retry_delay_s is None:
            return found
        return attrs.evolve(found, retry_after_s=found.retry_delay_s)

    @classmethod
    def from_error_object(cls, error: object, redactor: Redactor) -> "GeminiErrorResponse":
        """Parse an error object, as in a stream."""
        found = cast("GeminiErrorResponse", super().from_error_object(error, redactor))
        fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        name = fields.get("status")
        details = _details(fields)
        delay = _retry_delay_s(details)
        return attrs.evolve(
            found,
            status=found.status if found.codes else _STATUS_OF_NAME.get(str(name), found.status),
            codes=(*found.codes, *([name] if isinstance(name, str) else []), *_reasons(details)),
            retry_after_s=delay,
            retry_delay_s=delay,
        )

    retry_delay_s: float | None = None
    """The delay of a google.rpc.RetryInfo."""

    def _refused(self, message: str) -> BackendError:
        text = self.searched
        if self.status == 499:
            # Something between us and the model gave up.
            return ServerError(message, retry_after_s=self.retry_after_s)
        if "API_KEY_INVALID" in self.codes or (self.status == 400 and _ABOUT_KEY.search(text)):
            return AuthenticationFailed(message)
        if self.status == 400 and "FAILED_PRECONDITION" in self.codes and _ABOUT_ACCOUNT.search(text):
            return QuotaExhausted(message)
        if self.status == 403 and _ABOUT_FILE.search(text):
            return BadRequest(message)
        # A limit for a day is not over before the call is, whatever the delay says.
        if self.status == 429 and any("PerDay" in code for code in self.codes):
            return QuotaExhausted(message)
        return super()._refused(message)

    def _bad_request(self, message: str) -> BackendError:
        text = self.searched
        if self.status == 404 and _ABOUT_MODEL.search(text):
            return ModelNotFound(message)
        if self.status == 404:
            hint = "There is no API at this address, or no such file. Check base_url, which has no version in it."
            return BadRequest(message, hint=hint)
        if self.status == 400 and _TOO_LARGE.search(text):
            return RequestTooLarge(message)
        if self.status == 400 and _TOOLS_AND_SCHEMA.search(text):
            hint = 'This model has no schema for the answer beside tools: pass structured="tool" or "prompt".'
            return BadRequest(message, hint=hint)
        return super()._bad_request(message)


def _details(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    details = fields.get("details")
    items = cast("list[object]", details) if isinstance(details, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _reasons(details: list[dict[str, Any]]) -> list[str]:
    """Return the reasons and the ids of the quotas that the details name."""
    found = [detail.get("reason") for detail in details]
    for detail in details:
        violations = detail.get("violations")
        items = cast("list[object]", violations) if isinstance(violations, list) else []
        found += [cast("dict[str, Any]", item).get("quotaId") for item in items if isinstance(item, dict)]
    return [name for name in found if isinstance(name, str) and len(name) <= 100]


def _retry_delay_s(details: list[dict[str, Any]]) -> float | None:
    for detail in details:
        found = _DELAY.fullmatch(given) if isinstance(given := detail.get("retryDelay"), str) else None
        if found is not None and math.isfinite(wait_s := float(found[1])):
            return min(wait_s, MAX_RETRY_AFTER_S)
    return None
