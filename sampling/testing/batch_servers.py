"""
A loopback server with the batch APIs of OpenAI and Anthropic: `BatchServer`.

It counts how often each request was billed, so a test can show that nothing was paid for twice.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message as Headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, cast
from urllib.parse import parse_qs, urlsplit

import attrs
from anyio.lowlevel import checkpoint

from sampling._picklable import Picklable
from sampling.backends.http._transport import Transport, WireRequest, WireResponse
from sampling.errors import ConnectionLost

__all__ = ["BatchRequest", "BatchServer", "ServerBatch", "Verdict"]

Json: TypeAlias = dict[str, Any]
Api: TypeAlias = Literal["openai", "anthropic"]
Call: TypeAlias = Callable[[str, str], "tuple[int, Json] | None"]

_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


@attrs.frozen
class BatchRequest:
    """One request of a batch."""

    custom_id: str
    body: Json

    @property
    def prompt(self) -> str:
        """The text of the last message."""
        messages = self.body.get("messages") or self.body.get("input") or [{"content": self.body.get("prompt", "")}]
        content = messages if isinstance(messages, str) else messages[-1]["content"]
        return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@attrs.frozen
class Verdict:
    """The outcome of a request without an answer: it expires, or fails with a status and an error."""

    kind: Literal["expired", "errored"] = "errored"
    status: int = 500
    error: Json = attrs.field(factory=lambda: {"type": "api_error", "message": "try again"})


@attrs.define
class ServerBatch:
    """A batch at the server."""

    id: str
    api: Api
    requests: list[BatchRequest]
    created: float
    created_s: float
    ready: float
    fields: Json = attrs.field(factory=dict[str, Any])
    status: str = "in_progress"
    """The status in OpenAI's terms: in_progress, cancelling, completed, cancelled, expired or failed."""

    finished: int = 0
    """The number of requests that were finished when it was cancelled."""

    lines: dict[str, list[bytes]] = attrs.field(factory=dict[str, list[bytes]])
    """The lines of its result files, once it has ended."""

    counts: Counter[str] = attrs.field(factory=Counter[str])
    errors: list[Json] = attrs.field(factory=list[dict[str, Any]])

    @property
    def ended(self) -> bool:
        """True if the batch has ended."""
        return self.status in {"completed", "cancelled", "expired", "failed"}


class BatchServer:
    """
    A server on a free port of this machine that speaks both batch APIs, in a thread of its own.

        with BatchServer(lambda request: request.prompt.upper()) as server:
            backend = OpenAIBackend(server.url, "key", "some-model")

    `answer` gets each request when its batch ends, and returns the text of the answer or a `Verdict`.
    A batch ends `latency_s` after its creation, on the given `clock`. A batch that is cancelled has answers to as many
    of its requests as the elapsed part of that time allows.
    Without `with`, use `transport` to connect without a socket, such as in virtual time.
    """

    def __init__(
        self,
        answer: Callable[[BatchRequest], str | Verdict] = lambda request: f"answer to {request.prompt}",
        *,
        latency_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer = answer
        self.latency_s = latency_s
        self.clock = clock
        self.batches: list[ServerBatch] = []
        """All batches, in order."""

        self.files: dict[str, bytes] = {}
        """The uploaded files."""

        self.billed: Counter[str] = Counter()
        """How often each request was answered and billed, by its id."""

        self.calls: list[tuple[str, str]] = []
        """The method and the path of all calls, in order."""

        self.headers: list[dict[str, str]] = []
        """The headers of all calls, with names in lower case."""

        self.intercept: Call | None = None
        """Called with the method and the path of each call. It may return a status and a body instead of the answer."""

        self.drop: Callable[[str, str], bool] = lambda _method, _path: False
        """Called after each call was handled. If it returns True, the connection is closed instead of an answer."""

        self.mangle: Callable[[list[bytes]], list[bytes]] = lambda lines: lines
        """Called with the lines of each result file, which it may change."""

        self.cancel_s: float = 0.0
        """The time that it takes to cancel a batch, in seconds."""

        self.max_enqueued: int | None = None
        """The number of requests in progress at which OpenAI's API refuses further batches."""

        self._lock = threading.RLock()
        self._http: ThreadingHTTPServer | None = None

    # Serve.

    @property
    def url(self) -> str:
        """The `base_url` for a backend."""
        if self._http is None:
            return "http://127.0.0.1:9/v1"
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()

    def transport(self) -> Transport:
        """Return a transport that calls this server without a socket."""
        return _DirectTransport(self)

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer one call. Return the status and the body."""
        with self._lock:
            url = urlsplit(target)
            self.calls.append((method, url.path))
            self.headers.append({name.lower(): value for name, value in headers.items()})
            given = None if self.intercept is None else self.intercept(method, url.path)
            if given is not None:
                return given[0], json.dumps(given[1]).encode()
            try:
                self._advance()
                answer = self._route(method, url.path, parse_qs(url.query), self.headers[-1], body)
            except _Refused as refused:
                return refused.status, json.dumps({"type": "error", "error": refused.error}).encode()
            return 200, answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def _route(
        self, method: str, path: str, query: Mapping[str, list[str]], headers: Mapping[str, str], body: bytes
    ) -> Json | bytes:
        parts = path.strip("/").split("/")
        if parts[:3] == ["v1", "messages", "batches"]:
            if not headers.keys() & {"x-api-key", "authorization"} or "anthropic-version" not in headers:
                raise _Refused(401, "authentication_error", "a key and anthropic-version are required")
            return self._anthropic(method, parts[3:], query, body)
        if not headers.get("authorization", "").startswith("Bearer "):
            raise _Refused(401, "invalid_api_key", "a key is required")
        if parts[:2] == ["v1", "files"]:
            return self._files(method, parts[2:], headers, body)
        if parts[:2] == ["v1", "batches"]:
            return self._openai(method, parts[2:], query, body)
        raise _Refused(404, "not_found_error", f"no such path: {path}")

    # OpenAI.

    def _files(self, method: str, parts: list[str], headers: Mapping[str, str], body: bytes) -> Json | bytes:
        if method == "POST" and not parts:
            fields = _multipart(headers.get("content-type", ""), body)
            if fields.get("purpose") != b"batch" or "file" not in fields:
                raise _Refused(400, "invalid_request_error", "purpose and file are required")
            file_id = f"file-{len(self.files) + 1}"
            self.files[file_id] = fields["file"]
            return {
                "id": file_id,
                "object": "file",
                "bytes": len(fields["file"]),
                "created_at": int(time.time()),
                "filename": "requests.jsonl",
                "purpose": "batch",
                "status": "processed",
            }
        if method == "GET" and len(parts) == 2 and parts[1] == "content":
            for batch in self.batches:
                if batch.api == "openai" and parts[0] in batch.lines:
                    return _joined(self.mangle(batch.lines[parts[0]]))
            if parts[0] in self.files:
                return self.files[parts[0]]
        raise _Refused(404, "not_found_error", "no such file")

    def _openai(self, method: str, parts: list[str], query: Mapping[str, list[str]], body: bytes) -> Json:
        if method == "POST" and not parts:
            return self._openai_create(json.loads(body))
        if method == "GET" and not parts:
            page, has_more = self._page("openai", query, "after")
            data = [_openai_json(batch) for batch in page]
            ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
            return {"object": "list", "data": data, "has_more": has_more, **ids}
        batch = self._batch("openai", parts[0])
        if method == "POST" and parts[1:] == ["cancel"]:
            self._cancel(batch)
        elif method != "GET" or len(parts) > 1:
            raise _Refused(405, "invalid_request_error", "not allowed")
        return _openai_json(batch)

    def _openai_create(self, fields: Json) -> Json:
        file = self.files.get(fields.get("input_file_id", ""))
        if file is None or fields.get("endpoint") not in _ENDPOINTS or fields.get("completion_window") != "24h":
            raise _Refused(400, "invalid_request_error", "input_file_id, endpoint and completion_window are required")
        batch = self._new_batch("openai", [], fields)
        lines = [line for line in file.splitlines() if line.strip()]
        batch.errors = _openai_errors(lines, fields["endpoint"])
        enqueued = sum([len(other.requests) for other in self.batches if not other.ended])
        if self.max_enqueued is not None and enqueued + len(lines) > self.max_enqueued:
            message = "Enqueued token limit reached. Try again once some in_progress batches have been completed."
            batch.errors = [{"code": "token_limit_exceeded", "message": message, "line": None, "param": None}]
        if batch.errors:
            batch.status = "failed"
        else:
            batch.requests = [BatchRequest(one["custom_id"], one["body"]) for one in map(json.loads, lines)]
        return _openai_json(batch)

    # Anthropic.

    def _anthropic(self, method: str, parts: list[str], query: Mapping[str, list[str]], body: bytes) -> Json | bytes:
        if method == "POST" and not parts:
            return self._anthropic_json(self._anthropic_create(json.loads(body)))
        if method == "GET" and not parts:
            page, has_more = self._page("anthropic", query, "after_id")
            data = [self._anthropic_json(batch) for batch in page]
            ids = (data[0]["id"], data[-1]["id"]) if data else (None, None)
            return {"data": data, "has_more": has_more, "first_id": ids[0], "last_id": ids[1]}
        batch = self._batch("anthropic", parts[0])
        if method == "POST" and parts[1:] == ["cancel"]:
            self._cancel(batch)
        elif method == "GET" and parts[1:] == ["results"]:
            if not batch.ended:
                raise _Refused(400, "invalid_request_error", "the batch has not ended")
            return _joined(self.mangle(batch.lines["results"]))
        elif method != "GET" or len(parts) > 1:
            raise _Refused(405, "invalid_request_error", "not allowed")
        return self._anthropic_json(batch)

    def _anthropic_create(self, fields: Json) -> ServerBatch:
        requests: list[Json] = fields["requests"]
        ids = [one.get("custom_id", "") for one in requests]
        if not requests or len(requests) > 100_000 or len(set(ids)) < len(ids):
            raise _Refused(400, "invalid_request_error", "requests: 1 to 100,000 with unique ids are required")
        if not all(_CUSTOM_ID.fullmatch(one) for one in ids):
            raise _Refused(400, "invalid_request_error", "custom_id must match ^[a-zA-Z0-9_-]{1,64}$")
        for one in requests:
            missing = {"model", "max_tokens", "messages"} - one["params"].keys()
            if missing or one["params"].get("stream"):
                raise _Refused(400, "invalid_request_error", f"params: missing {sorted(missing)}, or streamed")
        return self._new_batch("anthropic", [BatchRequest(one["custom_id"], one["params"]) for one in requests], {})

    def _anthropic_json(self, batch: ServerBatch) -> Json:
        names = ("processing", "succeeded", "errored", "canceled", "expired")
        counts = {name: batch.counts[name] if batch.ended else 0 for name in names}
        if not batch.ended:
            counts["processing"] = len(batch.requests)
        status = "ended" if batch.ended else "canceling" if batch.status == "cancelling" else "in_progress"
        created = datetime.fromtimestamp(batch.created_s, UTC)
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "created_at": created.isoformat(),
            "expires_at": datetime.fromtimestamp(batch.created_s + 86_400, UTC).isoformat(),
            "ended_at": datetime.now(UTC).isoformat() if batch.ended else None,
            "cancel_initiated_at": created.isoformat() if status == "canceling" else None,
            "archived_at": None,
            "results_url": f"{self.url}/messages/batches/{batch.id}/results" if batch.ended else None,
        }

    # Both.

    def _new_batch(
        self, api: Literal["openai", "anthropic"], requests: list[BatchRequest], fields: Json
    ) -> ServerBatch:
        now = self.clock()
        number = len(self.batches) + 1
        name = f"batch_{number}" if api == "openai" else f"msgbatch_{number}"
        batch = ServerBatch(name, api, requests, now, time.time(), now + self.latency_s, fields)
        self.batches.append(batch)
        return batch

    def _batch(self, api: str, batch_id: str) -> ServerBatch:
        found = [batch for batch in self.batches if batch.id == batch_id and batch.api == api]
        if not found:
            raise _Refused(404, "not_found_error", f"no such batch: {batch_id}")
        return found[0]

    def _page(self, api: str, query: Mapping[str, list[str]], after: str) -> tuple[list[ServerBatch], bool]:
        newest_first = [batch for batch in reversed(self.batches) if batch.api == api]
        ids = [batch.id for batch in newest_first]
        start = ids.index(query[after][0]) + 1 if after in query else 0
        limit = int(query.get("limit", ["20"])[0])
        return newest_first[start : start + limit], len(newest_first) > start + limit

    def _cancel(self, batch: ServerBatch) -> None:
        if not batch.ended:
            batch.status = "cancelling"
            share = 1.0 if not self.latency_s else (self.clock() - batch.created) / self.latency_s
            batch.finished = int(len(batch.requests) * min(share, 1.0))
            batch.ready = self.clock() + self.cancel_s
            self._advance()

    def _advance(self) -> None:
        for batch in self.batches:
            if batch.status in {"in_progress", "cancelling"} and self.clock() >= batch.ready:
                cancelled = batch.status == "cancelling"
                self._end(
                    batch,
                    batch.finished if cancelled else len(batch.requests),
                    "cancelled" if cancelled else "completed",
                )

    def _end(self, batch: ServerBatch, finished: int, status: str) -> None:
        """Answer the first requests of a batch, and end it."""
        good: list[bytes] = []
        bad: list[bytes] = []
        openai = batch.api == "openai"
        for position, request in enumerate(batch.requests):
            answer = self.answer(request) if position < finished else Verdict("expired")
            kind = "canceled" if position >= finished else "succeeded" if isinstance(answer, str) else answer.kind
            batch.counts[kind] += 1
            self.billed[request.custom_id] += kind == "succeeded"
            line = (_openai_line if openai else _anthropic_line)(request, answer, kind, batch)
            (good if kind == "succeeded" or not openai else bad).append(json.dumps(line).encode())
        if openai:
            if good:
                batch.lines[f"file-{batch.id}-output"] = good
            if bad:
                batch.lines[f"file-{batch.id}-errors"] = bad
        else:
            batch.lines["results"] = good
        batch.status = "expired" if openai and batch.counts["expired"] else status


class _Refused(Picklable, Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"type": kind, "message": message, "code": kind, "param": None}


def _joined(lines: list[bytes]) -> bytes:
    return b"".join([line + b"\n" for line in lines])


def _multipart(content_type: str, body: bytes) -> dict[str, bytes]:
    header = Headers()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise _Refused(400, "invalid_request_error", "a form is required")
    fields: dict[str, bytes] = {}
    for part in body.split(b"--" + boundary.encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        found = re.search(rb'name="([^"]+)"', head)
        if found is not None:
            fields[found[1].decode()] = content.removesuffix(b"\r\n")
    return fields


def _openai_errors(lines: list[bytes], endpoint: str) -> list[Json]:
    """Return the errors that OpenAI's validation finds in a file."""
    seen: set[str] = set()
    models: set[str] = set()
    problems = [(number, _problem(line, endpoint, seen, models)) for number, line in enumerate(lines, 1)]
    if not lines or len(lines) > 50_000:
        problems.append((0, "invalid_file"))
    return [
        {"code": code, "message": f"line {number} is not valid", "line": number or None, "param": None}
        for number, code in problems
        if code is not None
    ]


def _problem(line: bytes, endpoint: str, seen: set[str], models: set[str]) -> str | None:
    try:
        one: Json = json.loads(line)
        custom_id, body, model = str(one["custom_id"]), cast("Json", one["body"]), str(one["body"]["model"])
    except (ValueError, KeyError, TypeError):
        return "invalid_json_line"
    if custom_id in seen:
        return "duplicate_custom_id"
    if one.get("method") != "POST" or one.get("url") != endpoint or body.get("stream"):
        return "invalid_request"
    seen.add(custom_id)
    models.add(model)
    return None if len(models) == 1 else "mismatched_model"


def _openai_json(batch: ServerBatch) -> Json:
    counts = batch.counts
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.fields["endpoint"],
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.fields["input_file_id"],
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": next((file for file in batch.lines if file.endswith("output")), None),
        "error_file_id": next((file for file in batch.lines if file.endswith("errors")), None),
        "created_at": int(batch.created_s),
        "expires_at": int(batch.created_s) + 86_400,
        "request_counts": {
            "total": len(batch.requests),
            "completed": counts["succeeded"],
            "failed": counts["errored"],
        },
        "metadata": batch.fields.get("metadata"),
    }


def _usage(request: BatchRequest, text: str) -> tuple[int, int]:
    return len(request.prompt.split()) or 1, len(text.split()) or 1


def _openai_line(request: BatchRequest, answer: str | Verdict, kind: str, batch: ServerBatch) -> Json:
    line: Json = {
        "id": f"batch_req_{request.custom_id}",
        "custom_id": request.custom_id,
        "response": None,
        "error": None,
    }
    if kind in {"expired", "canceled"}:
        code = "batch_expired" if kind == "expired" else "batch_cancelled"
        return {**line, "error": {"code": code, "message": "This request could not be executed."}}
    if isinstance(answer, Verdict):
        response = {"status_code": answer.status, "request_id": "req_1", "body": {"error": answer.error}}
        return {**line, "response": response}
    used = _usage(request, answer)
    model = request.body["model"]
    body: Json
    if batch.fields["endpoint"] == "/v1/responses":
        content: list[Json] = [{"type": "output_text", "text": answer, "annotations": []}]
        message: Json = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        usage = {"input_tokens": used[0], "output_tokens": used[1], "total_tokens": sum(used)}
        body = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": model}
        body |= {"output": [message], "usage": usage}
    else:
        chat = batch.fields["endpoint"] == "/v1/chat/completions"
        said = {"message": {"role": "assistant", "content": answer}} if chat else {"text": answer}
        usage = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
        kind = "chat.completion" if chat else "text_completion"
        body = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model, "usage": usage}
        body |= {"choices": [{"index": 0, **said, "finish_reason": "stop", "logprobs": None}]}
    return {**line, "response": {"status_code": 200, "request_id": "req_1", "body": body}}


def _anthropic_line(request: BatchRequest, answer: str | Verdict, kind: str, _batch: ServerBatch) -> Json:
    if kind in {"expired", "canceled"}:
        return {"custom_id": request.custom_id, "result": {"type": kind}}
    if isinstance(answer, Verdict):
        error = {"type": "error", "error": answer.error, "request_id": "req_1"}
        return {"custom_id": request.custom_id, "result": {"type": "errored", "error": error}}
    used = _usage(request, answer)
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": [{"type": "text", "text": answer}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": used[0], "output_tokens": used[1]},
    }
    return {"custom_id": request.custom_id, "result": {"type": "succeeded", "message": message}}


class _Handler(BaseHTTPRequestHandler):
    owner: ClassVar[BatchServer]
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        status, answer = self.owner.handle(self.command, self.path, dict(self.headers), body)
        if self.owner.drop(self.command, urlsplit(self.path).path):
            self.close_connection = True
            return
        with suppress(OSError):  # the client may be gone, which is no concern of the server
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    do_GET = do_POST = _serve  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
        """Write nothing."""


@attrs.frozen
class _DirectResponse:
    status: int
    _body: list[bytes]
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str])

    async def read(self) -> bytes:
        await checkpoint()
        return self._body.pop() if self._body else b""

    async def aclose(self) -> None:
        await checkpoint()


@attrs.frozen
class _DirectTransport:
    _server: BatchServer

    async def open(self, request: WireRequest) -> WireResponse:
        await checkpoint()
        request.on_sent()
        parts = urlsplit(request.url)
        target = f"{parts.path}?{parts.query}"
        status, body = self._server.handle(request.method, target, request.headers, request.body)
        await checkpoint()
        if self._server.drop(request.method, parts.path):
            raise ConnectionLost("the connection to the server broke")
        return _DirectResponse(status, [body])

    async def aclose(self) -> None:
        await checkpoint()
