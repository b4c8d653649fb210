"""OpenAI's Batch API: a file of requests, a batch of it, and files of replies."""

import json
import math
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar, Final, cast
from urllib.parse import quote

from sampling.backends._deferral import DeferredReply
from sampling.backends.http._batches import BatchClient, BatchProblem, BatchReply, BatchState, ReplyKind
from sampling.backends.http._fields import Json, optional
from sampling.backends.http._rest import RestClient
from sampling.errors import MalformedResponse

__all__ = ["OpenAIBatches"]

_ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
_NOT_RUN: Final[dict[str, ReplyKind]] = {"batch_expired": "expired", "batch_cancelled": "cancelled"}
_ENDED_EARLY: Final[dict[str, ReplyKind]] = {"expired": "expired", "cancelled": "cancelled", "failed": "failed"}
_LIMIT_CODES: Final = frozenset({"token_limit_exceeded", "rate_limit_exceeded", "request_limit_exceeded"})
_SHARED_PARAMS: Final = frozenset({"body.model", "method", "model", "url"})
"""The parameters that all requests of a batch share."""

_NAME: Final = "sampling_batch"


class OpenAIBatches(BatchClient):
    """A client of OpenAI's Batch API."""

    max_requests: ClassVar[int] = 50_000
    max_bytes: ClassVar[int] = 200_000_000
    after_parameter: ClassVar[str] = "after"
    keeps_names: ClassVar[bool] = True

    def __init__(self, rest: RestClient, *, base_url: str, path: str, where: str, max_line_bytes: int) -> None:
        """Set the address of the API, and the path of the requests."""
        super().__init__(rest, f"{base_url}/batches", where=where, max_line_bytes=max_line_bytes)
        self._base_url = base_url
        self._path = f"/v1{path}"

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Return a line of the file of requests."""
        head = f'{{"custom_id":"{custom_id}","method":"POST","url":"{self._path}","body":'
        return b"%b%b}" % (head.encode(), body)

    async def upload(self, lines: Sequence[bytes], name: str) -> str | None:
        """Upload the file of requests, and return its id."""
        mark = f"sampling-{secrets.token_hex(16)}"
        parts = (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}.jsonl"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        body = b"".join([parts.encode(), b"\n".join(lines), f"\n\r\n--{mark}--\r\n".encode()])
        headers = {"content-type": f"multipart/form-data; boundary={mark}"}
        return _id(await self._rest.json("POST", f"{self._base_url}/files", body, headers))

    async def create(self, lines: Sequence[bytes], file_id: str | None, name: str) -> str:
        """Create a batch of an uploaded file."""
        body = {
            "input_file_id": file_id,
            "endpoint": self._path,
            "completion_window": "24h",
            "metadata": {_NAME: name},
        }
        headers = {"content-type": "application/json", "idempotency-key": name}
        return _id(await self._rest.post_once(self._url, json.dumps(body).encode(), headers))

    def parse(self, line: Json) -> BatchReply | None:
        """Parse a line of an output or error file."""
        custom_id, response, error = line.get("custom_id"), line.get("response"), line.get("error")
        if not isinstance(custom_id, str):
            return None
        fields = cast("Json", response) if isinstance(response, dict) else {}
        status, body = _status(fields), fields.get("body")
        # Some servers send the error beside an empty response.
        if error and not (status and body):
            return _failed(custom_id, status, error)
        if not isinstance(response, dict):
            return None
        return BatchReply(custom_id, "answered", DeferredReply(status or 500, json.dumps(body).encode()))

    def _state(self, batch: Json) -> BatchState:
        return _state(batch)

    def _file_url(self, file: str) -> str:
        return f"{self._base_url}/files/{quote(file, safe='')}/content"


def _status(response: Json) -> int:
    """Return the status of a response, or 0 if there was none."""
    status, body = response.get("status_code"), response.get("body")
    if isinstance(status, int) and 100 <= status <= 599:
        return 200 if 200 <= status < 300 else status
    # An answer without a status was paid for as well.
    return 200 if isinstance(body, dict) and body and "error" not in body else 0


def _failed(custom_id: str, status: int, error: object) -> BatchReply:
    code = str(cast("Json", error).get("code")) if isinstance(error, dict) else ""
    if code in _NOT_RUN:
        return BatchReply(custom_id, _NOT_RUN[code])
    # Without a status of an error, only the error tells it.
    status = status if status >= 400 else 504 if code == "request_timeout" else 0
    return BatchReply(custom_id, "answered", DeferredReply(status, json.dumps({"error": error}).encode()))


def _id(fields: Json) -> str:
    found = optional(fields, "id", str)
    if not found:
        raise MalformedResponse("the response has no id")
    return found


def _state(batch: Json) -> BatchState:
    # Servers differ in what they report about a batch, and none of it is needed to read the answers.
    counts, metadata = _object(batch.get("request_counts")), _object(batch.get("metadata"))
    status = optional(batch, "status", str) or ""
    kind = status.lower()
    files = [optional(batch, name, str) for name in ("output_file_id", "error_file_id")]
    return BatchState(
        batch_id=_id(batch),
        status=status,
        ended=kind in _ENDED,
        total=_count(counts.get("total")),
        done=_count(counts.get("completed")) + _count(counts.get("failed")),
        failed=_count(counts.get("failed")),
        created_s=_number(batch.get("created_at")),
        name=optional(metadata, _NAME, str),
        files=tuple([file for file in files if file]),
        problems=tuple(map(_problem, _errors(batch.get("errors")))) if kind == "failed" else (),
        # Some servers write no lines for requests that were not run.
        not_run=_ENDED_EARLY.get(kind),
    )


def _errors(errors: object) -> list[Json]:
    """Return the errors of a batch, which some servers send as a text or as a list."""
    if isinstance(errors, str):
        return [{"message": errors}] if errors else []
    listed: object = cast("Json", errors).get("data") if isinstance(errors, dict) else errors
    return [_object(error) for error in cast("list[object]", listed)] if isinstance(listed, list) else []


def _problem(error: Json) -> BatchProblem:
    code, param, line = str(error.get("code")), str(error.get("param")), error.get("line")
    # A server may name only the first of the lines that share a wrong value.
    is_shared = param in _SHARED_PARAMS or code == "model_not_found"
    return BatchProblem(error, line if type(line) is int and not is_shared else None, code in _LIMIT_CODES)


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
