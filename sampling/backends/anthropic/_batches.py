"""Anthropic's Message Batches API."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, cast

from sampling.backends._deferral import DeferredReply
from sampling.backends.http._batches import BatchClient, BatchReply, BatchState, ReplyKind
from sampling.backends.http._fields import Json, object_or_none, optional
from sampling.backends.http._rest import RestClient
from sampling.errors import MalformedResponse

__all__ = ["AnthropicBatches"]

_NOT_RUN: Final[dict[str, ReplyKind]] = {"expired": "expired", "canceled": "cancelled"}
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")


class AnthropicBatches(BatchClient):
    """A client of Anthropic's Message Batches API."""

    max_requests: ClassVar[int] = 100_000
    max_bytes: ClassVar[int] = 256_000_000
    after_parameter: ClassVar[str] = "after_id"
    keeps_names: ClassVar[bool] = False

    def __init__(self, rest: RestClient, *, base_url: str, where: str, max_line_bytes: int) -> None:
        """Set the address of the API, before its /v1."""
        super().__init__(rest, f"{base_url}/v1/messages/batches", where=where, max_line_bytes=max_line_bytes)

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Return one of the requests of a batch."""
        return b'{"custom_id":"%b","params":%b}' % (custom_id.encode(), body)

    async def create(self, lines: Sequence[bytes], file_id: str | None, name: str) -> str:
        """Create a batch of these requests."""
        headers = {"content-type": "application/json", "idempotency-key": name}
        body = b'{"requests":[%b]}' % b",".join(lines)
        return self._state(await self._rest.post_once(self._url, body, headers)).batch_id

    def parse(self, line: Json) -> BatchReply | None:
        """Parse a line of the results."""
        custom_id, result = line.get("custom_id"), line.get("result")
        if not isinstance(custom_id, str) or not isinstance(result, dict):
            return None
        fields = cast("Json", result)
        kind = str(fields.get("type"))
        if kind in _NOT_RUN:
            return BatchReply(custom_id, _NOT_RUN[kind])
        if kind == "succeeded":
            return BatchReply(custom_id, "answered", DeferredReply(200, _dumped(fields.get("message"))))
        if kind == "errored":
            return BatchReply(custom_id, "answered", DeferredReply(0, _dumped(fields.get("error"))))
        return None

    def _state(self, batch: Json) -> BatchState:
        return _state(batch)

    def _file_url(self, file: str) -> str:
        # Not the URL that the server names: the key is sent to the given address only.
        return f"{self._url_of(file)}/results"


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _state(batch: Json) -> BatchState:
    batch_id = optional(batch, "id", str)
    if not batch_id:
        raise MalformedResponse("the response has no id")
    counts = object_or_none(batch, "request_counts") or {}
    numbers = {name: optional(counts, name, int) or 0 for name in _COUNTS}
    status = optional(batch, "processing_status", str) or ""
    return BatchState(
        batch_id=batch_id,
        status=status,
        ended=status == "ended",
        total=sum(numbers.values()),
        done=numbers["succeeded"] + numbers["errored"],
        failed=numbers["errored"],
        created_s=_seconds(optional(batch, "created_at", str)),
        files=(batch_id,) if status == "ended" else (),
    )


def _seconds(time: str | None) -> float | None:
    try:
        return None if time is None else datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
