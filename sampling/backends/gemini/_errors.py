"""Translate the errors of the Gemini API, which are google.rpc.Status objects, into typed errors."""

import re
from collections.abc import Mapping
from typing import Any, cast

import attrs

from sampling._redaction import Redactor
from sampling.backends.http._errors import ErrorResponse
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
    def from_error_object(cls, error: object, redactor: Redactor) -> "GeminiErrorResponse":
        """Parse an error object, as in a stream."""
        found = cast("GeminiErrorResponse", super().from_error_object(error, redactor))
        fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        name = fields.get("status")
        return attrs.evolve(
            found,
            status=found.status if _has_code(fields) else _STATUS_OF_NAME.get(str(name), found.status),
            codes=(*found.codes, *([name] if isinstance(name, str) else [])),
        )

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
            hint = 'This model does not support a schema together with tools: pass structured="tool" or "prompt".'
            return BadRequest(message, hint=hint)
        return super()._bad_request(message)


def _has_code(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(fields.get(name), str | int) for name in ("code", "type"))
