"""Read the results of a batch, and sort them into answers and requests to send again."""

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar, cast

import anyio
import attrs

from sampling._json.bounded import loads
from sampling._log import Logger
from sampling._redaction import Redactor
from sampling.backends._deferral import DeferredReply
from sampling.backends.http._batches import BatchProblem, BatchReply, BatchState
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.http._fields import Json
from sampling.errors import (
    BackendError,
    BadRequest,
    FatalError,
    MalformedResponse,
    RateLimited,
    ResponseTooLarge,
    ServerError,
    Timeout,
)
from sampling.fanout.batch._lane import retry_transient_errors
from sampling.fanout.batch._ledger import Batch, Ledger
from sampling.fanout.batch._settings import Settings
from sampling.fanout.batch._tickets import ParkedRequest

__all__ = ["GONE", "Results", "error_of_problem"]

log = Logger("sampling.fanout.batch")

_CHUNK: Final = 200
"""The number of answers that are written to the journal at once."""

_PAUSES_S: Final = (10.0, 60.0, 300.0)
"""The pauses before incomplete results are read again."""

GONE: Final = frozenset({404, 410})
"""The statuses of a batch or a file that the provider does not have, or no longer."""

_SERVER_FAILED: Final = frozenset({"api_error", "internal_error", "internal_server_error", "server_error"})
"""The codes of a batch that was refused because the server failed."""

_CUSTOM_ID: Final = re.compile(rb'"custom_id"\s*:\s*"([\w-]{1,64})"')
_HEAD_BYTES: Final = 1_000
_NOBODY: Final = Redactor([])

Again: TypeAlias = Callable[[ParkedRequest], None]

T = TypeVar("T")


@attrs.define
class Results:
    """The results of one batch, while they are read."""

    _batch: Batch
    _ledger: Ledger
    _settings: Settings
    _again: Again
    """Queues a request for a later batch."""

    state: BatchState
    """The state of the batch, which has ended."""

    _answers: list[tuple[str, DeferredReply]] = attrs.field(factory=list[tuple[str, DeferredReply]])
    _others: list[tuple[str, BatchReply | BackendError]] = attrs.field(
        factory=list[tuple[str, "BatchReply | BackendError"]]
    )
    _pending: set[str] = attrs.field(factory=set[str])
    _is_last_read: bool = False
    """Whether a malformed line settles its request, because reading again did not help."""

    _unreadable: MalformedResponse | None = None
    """The reason why the file itself can't be read."""

    ignored: int = 0
    """The number of lines that are malformed, or belong to no request of the batch."""

    found: int = 0
    """The number of requests that have a line."""

    _processed: set[str] = attrs.field(factory=set[str])
    """Requests that the provider has processed, which were paid for. An earlier process may have settled some."""

    async def read(self) -> None:
        """
        Read all lines. After a broken connection, read again from the beginning: settled requests are skipped.

        If lines are missing or can't be read, the file may be whole a moment later, and the answers were paid for.
        """
        for pause_s in _PAUSES_S:
            if await self._is_whole():
                return
            log.warning("batch_results_incomplete", batch=self._batch.batch_id, again_in_s=pause_s)
            await anyio.sleep(pause_s)
            await self._refresh()
        self._is_last_read = True
        await self._are_there()
        if self._unreadable is not None:
            # Sending the requests again would be paid again, and most likely read the same way.
            hint = "The batch has ended at the provider. Run again with the same journal to read its results."
            raise FatalError(f"the results of the batch can't be read: {self._unreadable}", hint=hint)

    async def _refresh(self) -> None:
        """Poll the state again, because the provider may name the files of results only now."""
        try:
            state = await self._retry(lambda: self._batch.client.state(self._batch.batch_id or ""))
        except BadRequest as error:
            if error.status not in GONE:
                raise
            return
        if state.ended:
            self.state = state

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        # The answers are paid for, so an outage is waited out.
        max_wait_s = self._settings.max_wait_s
        return await retry_transient_errors(work, max_wait_s, max_wait_s)

    async def _is_whole(self) -> bool:
        """Read the lines, and return whether there is nothing to gain from reading them again."""
        batch = self._batch
        if not await self._are_there():
            return False
        # Without any line, the file may not be there yet.
        is_stranger = bool(self.ignored) and not self.found and not batch.is_verified
        return is_stranger or self._has_all

    @property
    def _has_all(self) -> bool:
        """True if there were lines for all requests that the provider has processed."""
        if not self._batch.requests:
            return True
        # Only a batch that ended early may lack lines. Other counts may lag behind.
        return self.state.not_run is not None and len(self._processed) >= self.state.done

    async def _are_there(self) -> bool:
        """Read the lines, and return False if the provider does not have them, or sends something else."""
        try:
            await self._retry(self._read)
        except BadRequest as error:
            if error.status not in GONE:
                raise
            return False
        return self._unreadable is None

    async def _read(self) -> None:
        self._answers, self._others, self._pending = [], [], set()
        self.ignored, self._unreadable = 0, None
        failure: BackendError | None = None
        try:
            await self._batch.client.read(self.state, self._take)
        except MalformedResponse as error:
            self._unreadable = error
        except BackendError as error:
            failure = error
        # Lines before an error are kept, because the next read may lack them.
        await self._flush()
        if failure is not None:
            raise failure

    async def _take(self, line: bytes) -> bool:
        custom_id, entry = self._entry(line)
        may_be_read_later = isinstance(entry, BackendError) and entry.retryable and not self._is_last_read
        if entry is not None and _is_processed(entry) and not may_be_read_later:
            self._processed.add(custom_id)
        # A second line about the same request does not count.
        if entry is None or custom_id not in self._batch.requests or custom_id in self._pending:
            self.ignored += 1
            return True
        if may_be_read_later:
            return True
        self._pending.add(custom_id)
        if isinstance(entry, BatchReply) and entry.reply is not None and entry.reply.status == 200:
            self._answers.append((custom_id, entry.reply))
        else:
            self._others.append((custom_id, entry))
        if len(self._pending) >= _CHUNK:
            await self._flush()
        return True

    def _entry(self, line: bytes) -> tuple[str, BatchReply | BackendError | None]:
        client = self._batch.client
        if len(line) >= client.max_line_bytes:
            return _named(line, ResponseTooLarge(f"the answer has {client.max_line_bytes:,} bytes or more"))
        try:
            # Some servers begin the file with a byte order mark.
            fields = loads(line.decode("utf-8-sig"))
        except ValueError as error:
            return _named(line, MalformedResponse(f"the answer is not JSON that can be read ({error})"))
        reply = client.parse(cast("Json", fields)) if isinstance(fields, dict) else None
        return ("", None) if reply is None else (reply.custom_id, reply)

    async def _flush(self) -> None:
        """Record the answers that were read, and then hand them out."""
        batch = self._batch
        answers, others = self._answers, self._others
        self._answers, self._others, self._pending = [], [], set()
        if not batch.is_verified and (answers or others):
            batch.is_verified = True
            await self._ledger.update(batch)
        # The provider has worked on a request whose line can't be read, and asking again would be paid again.
        lost = [custom_id for custom_id, entry in others if isinstance(entry, BackendError)]
        await self._ledger.settle(batch, answers, [custom_id for custom_id, _ in others], lost)
        self.found += len(answers) + len(others)
        for custom_id, reply in answers:
            del batch.requests[custom_id]
            ticket = batch.tickets.pop(custom_id, None)
            if ticket is not None:
                ticket.answer(reply)
        for custom_id, entry in others:
            del batch.requests[custom_id]
            ticket = batch.tickets.pop(custom_id, None)
            if ticket is not None:
                self._hand_out(ticket, entry)

    def _hand_out(self, ticket: ParkedRequest, entry: BatchReply | BackendError) -> None:
        if isinstance(entry, BackendError):
            ticket.fail(entry)
        elif entry.reply is not None:
            self._hand_out_error(ticket, entry.reply)
        elif entry.kind == "expired":
            self._again_or_refuse(ticket, Timeout("the request expired at the provider before it was processed"))
        elif entry.kind == "failed":
            self._again_or_refuse(ticket, ServerError("the batch failed at the provider, which gave no reason"))
        elif self._batch.timed_out:
            ticket.refuse(Timeout("the batch took too long and was cancelled", hint="Raise max_wait_s."))
        elif self._batch.state == "cancelling":
            # An earlier process has cancelled it, and this one continues.
            self._again(ticket)
        else:
            hint = "It was cancelled outside of this run. Run again to send its requests again."
            ticket.refuse(FatalError("the batch was cancelled at the provider", hint=hint))

    def _hand_out_error(self, ticket: ParkedRequest, reply: DeferredReply) -> None:
        if error_of_reply(reply).retryable and ticket.tries < self._settings.max_tries:
            self._again(ticket)
        else:
            # The backend raises it as it raises those of other requests.
            ticket.answer(reply)

    def _again_or_refuse(self, ticket: ParkedRequest, error: BackendError) -> None:
        """Send a request again that was not run, or end it with an error."""
        if ticket.tries < self._settings.max_tries:
            self._again(ticket)
        else:
            ticket.refuse(error)

    async def finish(self) -> None:
        """Settle the requests that the results did not mention."""
        batch = self._batch
        not_run = self.state.not_run if self._has_all else None
        if self.ignored:
            log.warning("batch_lines_ignored", batch=batch.batch_id, lines=self.ignored)
        await self._ledger.end(batch, is_lost=not_run is None)
        missing = [batch.tickets.pop(custom_id) for custom_id in tuple(batch.tickets)]
        batch.requests.clear()
        if not_run is not None:
            for ticket in missing:
                self._hand_out(ticket, BatchReply(ticket.custom_id, not_run))
            return
        if missing:
            # It is unknown whether the provider has processed them.
            log.warning("batch_replies_missing", batch=batch.batch_id, requests=len(missing))
        for ticket in missing:
            if ticket.tries < self._settings.max_tries:
                self._again(ticket)
            else:
                ticket.fail(MalformedResponse("the results of the batch have no line for the request"))


def _is_processed(entry: BatchReply | BackendError) -> bool:
    return isinstance(entry, BackendError) or entry.kind == "answered"


def _named(line: bytes, error: BackendError) -> tuple[str, BackendError | None]:
    """Return the request that an unreadable line belongs to, if it is recognisable, and its error."""
    found = _CUSTOM_ID.search(line[:_HEAD_BYTES])
    return ("", None) if found is None else (found[1].decode(), error)


def error_of_reply(reply: DeferredReply) -> BackendError:
    """Return the error of a reply, as far as it decides whether to try again."""
    if reply.status:
        return ErrorResponse.from_response(reply.status, {}, reply.body, _NOBODY).as_error()
    parsed = loads(reply.body.decode("utf-8", "replace"))
    fields = cast("Json", parsed) if isinstance(parsed, dict) else {}
    return ErrorResponse.from_error_object(fields.get("error", fields), _NOBODY).as_error()


def error_of_problem(problem: BatchProblem) -> BackendError:
    """Return the error of a request whose batch was refused."""
    found = ErrorResponse.from_error_object(problem.error, _NOBODY)
    if problem.is_about_limit:
        return RateLimited(f"the batch was refused: {found.message}")
    # An unknown code is no failure of the server, as it would be in a stream.
    is_unknown = found.status == 500 and _SERVER_FAILED.isdisjoint(found.codes)
    return attrs.evolve(found, status=400 if is_unknown else found.status).as_error()
