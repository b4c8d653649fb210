"""Gather requests of one model, and create batches of them."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio

from sampling._engine.scope import new_sampling_id
from sampling._log import Logger
from sampling.backends.http._batches import BatchClient
from sampling.errors import BackendError, BadRequest, ConnectFailed, RateLimited, RequestTooLarge, ServerError, Timeout
from sampling.fanout.batch._ledger import Batch, Ledger
from sampling.fanout.batch._settings import Settings
from sampling.fanout.batch._tickets import ParkedRequest

__all__ = ["Lane", "possible_batches", "retry_transient_errors"]

T = TypeVar("T")

log = Logger("sampling.fanout.batch")

_LONGEST_LINGER: Final = 10
"""The number of `linger_s` after which a batch is created although requests still come."""

_PATIENCE_S: Final = 3600.0
"""The time for which a call is retried after transient errors while nothing has shown that the server works."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_CREATE_GRACE_S: Final = 120.0
_LONGEST_CREATE_S: Final = 600.0
_SLOWEST_BYTES_PER_S: Final = 125_000.0
"""The speed of a slow line, which counts if the requests are sent with the creation."""

_FILE_PAUSES_S: Final = (1.0, 5.0, 25.0)
"""The pauses before a batch is created again of a file that the provider does not find yet."""

_GATEWAY_STATUSES: Final = frozenset({502, 504, 520, 524})
"""The statuses of a gateway that lost the connection or did not wait, while the server may still create the batch."""

_CLOCK_SKEW_S: Final = 300.0


class Lane:
    """
    The requests for one model of one backend.

    A batch of OpenAI has one model, so each model has its own lane.
    """

    def __init__(
        self, client: BatchClient, settings: Settings, ledger: Ledger, started: Callable[[Batch], None]
    ) -> None:
        """Call `started` with each batch that was created."""
        self._client = client
        self._settings = settings
        self._ledger = ledger
        self._started = started
        self._queue: deque[ParkedRequest] = deque()
        self._arrived = 0
        self._bytes = 0
        self._wake = anyio.Event()
        self._most = self._limit = min(settings.max_batch_requests or client.max_requests, client.max_requests)
        self._max_bytes = min(settings.max_batch_bytes, client.max_bytes)
        self._paused_until = 0.0
        self._refused_at: float | None = None
        """The time of the first refusal since a batch has ended, while the queue of the account is full."""

        self._has_created = False

    def add(self, request: ParkedRequest) -> None:
        """Queue a request for the next batch."""
        request.is_sent = False
        self._ledger.send(request)
        self._queue.append(request)
        self._arrived += 1
        self._bytes += len(request.body)
        if len(self._queue) == 1 or self._is_full:
            self._wake.set()

    def wait_for_room(self, refused: int, *, is_alone: bool) -> bool:
        """
        Create no batch for a while, because the queue of the account is full, and then none larger than this one.

        If no other batch of the run was in progress, it may have been too large, so the next one is smaller. Others
        may have filled the queue as well. Return False if there was no room for as long as a run waits.
        """
        now = anyio.current_time()
        if self._refused_at is None or not is_alone:
            self._refused_at = now
        self._pause()
        self._limit = max(1, min(self._limit, refused // 2 if is_alone else refused))
        return now < self._refused_at + self._settings.max_wait_s

    def resume(self) -> None:
        """End a pause, because a batch has ended."""
        self._paused_until = 0.0
        self._refused_at = None
        self._wake.set()

    def _pause(self) -> None:
        self._paused_until = anyio.current_time() + self._settings.max_poll_interval_s

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= self._limit or self._bytes >= self._max_bytes

    async def run(self) -> None:
        """Create batches until cancelled."""
        while True:
            if not self._queue:
                await self._wait()
            await self._gather()
            requests = self._take()
            if requests:
                await self._submit(requests)

    async def _wait(self, timeout_s: float | None = None) -> None:
        """Wait until there is a request, the queue is full, or the time is up."""
        self._wake = anyio.Event()
        with anyio.move_on_after(timeout_s):
            await self._wake.wait()

    async def _gather(self) -> None:
        """Wait until no more requests come for a while, or the batch is full."""
        linger_s = self._settings.linger_s
        latest = anyio.current_time() + _LONGEST_LINGER * linger_s
        arrived = -1
        while not self._is_full and arrived != self._arrived and anyio.current_time() < latest:
            arrived = self._arrived
            await self._wait(linger_s)
        while (pause_s := self._paused_until - anyio.current_time()) > 0:
            await self._wait(pause_s)

    def _take(self) -> list[ParkedRequest]:
        """Take requests for one batch, and drop those that were abandoned."""
        taken: list[ParkedRequest] = []
        size = 0
        while self._queue and len(taken) < self._limit:
            request = self._queue[0]
            # Each has some bytes around it.
            needed = len(request.body) + 200
            if taken and size + needed > self._max_bytes:
                break
            self._queue.popleft()
            self._bytes -= len(request.body)
            if not request.is_abandoned:
                taken.append(request)
                size += needed
        return taken

    async def _submit(self, requests: list[ParkedRequest]) -> None:
        client, ledger = self._client, self._ledger
        members = {request.custom_id: request.slot for request in requests}
        batch = Batch(f"sampling-{new_sampling_id()}", client, 0, members)
        batch.tickets = {request.custom_id: request for request in requests}
        lines = [client.line(request.custom_id, request.body) for request in requests]
        try:
            await ledger.begin(batch)
            batch.file_id = await self._retry(lambda: client.upload(lines, batch.name))
            batch.state = "sending"
            await self._create_from_file(batch, lines)
            self._has_created = True
            batch.state = "running"
            # From here on a later process finds it, even if this one is cancelled.
            with anyio.CancelScope(shield=True):
                await ledger.update(batch)
        except Exception as error:  # noqa: BLE001 - it is that of each request
            log.warning("batch_not_created", requests=len(requests), error_type=type(error).__name__)
            # Before an item ends because of it, so that its notes do not name a batch.
            with anyio.CancelScope(shield=True):
                await self._forget(batch)
            if isinstance(error, RequestTooLarge) and len(requests) > 1:
                self._split(requests)
                return
            for request in requests:
                request.fail(error)
            return
        for request in requests:
            request.tries += 1
            request.is_sent = True
        self._grow()
        self._started(batch)

    def _split(self, requests: Sequence[ParkedRequest]) -> None:
        """Queue the requests of a batch again that a server or a proxy refused for its size."""
        self._max_bytes = sum([len(request.body) for request in requests]) // 2
        for request in requests:
            self.add(request)

    def _grow(self) -> None:
        """Make the next batch larger. After a refusal, wait a while first, because this one may be refused too."""
        self._limit = min(2 * self._limit, self._most)
        if self._refused_at is not None:
            self._pause()

    async def _forget(self, batch: Batch) -> None:
        if batch.is_in_doubt:
            # A later process looks for it. If this one sends its requests again, it says so.
            self._ledger.doubt(batch.requests)
            return
        try:
            await self._ledger.end(batch)
        except Exception as error:  # noqa: BLE001 - the requests have failed already, most likely for the same reason
            log.warning("batch_not_forgotten", error_type=type(error).__name__)

    async def _create_from_file(self, batch: Batch, lines: list[bytes]) -> None:
        """Create a batch, and try again if the file that was just uploaded is not found."""
        for pause_s in _FILE_PAUSES_S:
            try:
                return await self._create(batch, lines)
            except BadRequest as error:
                if not _lacks_file(error, batch):
                    raise
            log.warning("batch_file_not_found", file=batch.file_id, again_in_s=pause_s)
            await anyio.sleep(pause_s)
        return await self._create(batch, lines)

    async def _create(self, batch: Batch, lines: list[bytes]) -> None:
        """Create a batch. If it is not known whether that succeeded, look for the batch before creating it again."""
        sent = sum([len(line) for line in lines]) if batch.file_id is None else 0
        grace_s = min(_CREATE_GRACE_S + sent / _SLOWEST_BYTES_PER_S, _LONGEST_CREATE_S)

        async def create() -> None:
            # It may be hours after the last try, and a batch may have to be looked for by its time.
            batch.created_s = time.time()
            await self._ledger.update(batch)
            hint = "Set a smaller max_batch_bytes, or try again later."
            failure: BackendError = Timeout(f"the batch was not created within {grace_s:.0f} s", hint=hint)
            try:
                # Shielded from cancellation: otherwise the batch might exist without a known id.
                with anyio.move_on_after(grace_s, shield=True):
                    batch.batch_id = await self._client.create(lines, batch.file_id, batch.name)
                    return
            except BackendError as error:
                if not error.retryable or isinstance(error, RateLimited | ConnectFailed):
                    raise
                failure = error
            batch.is_in_doubt = True
            await self._look_for(batch)
            batch.is_in_doubt = False
            if batch.batch_id is None:
                if not isinstance(failure, ServerError) or failure.status in _GATEWAY_STATUSES:
                    self._ledger.maybe_billed_twice(batch.tickets.values())
                raise failure

        await self._retry(create)

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry after transient errors, for longer if the server has created a batch before."""
        max_wait_s = self._settings.max_wait_s
        return await retry_transient_errors(work, max_wait_s if self._has_created else _PATIENCE_S, max_wait_s)

    async def _look_for(self, batch: Batch) -> None:
        found = await self._retry(lambda: possible_batches(batch, self._ledger.known_ids))
        if found:
            batch.batch_id, batch.candidates = found[0], found[1:]
            batch.is_verified = self._client.keeps_names


def _lacks_file(error: BadRequest, batch: Batch) -> bool:
    """Return whether a batch was refused because its file is not found. OpenAI answers that with a 400."""
    return batch.file_id is not None and (error.status == 404 or batch.file_id in str(error))


async def possible_batches(batch: Batch, known: set[str]) -> list[str]:
    """
    Return the ids of batches at the provider that may be this one.

    There is at most one if the provider keeps names. Otherwise they are found by time and size, and later by results.
    """
    client = batch.client
    try:
        states = await client.recent(batch.created_s - _CLOCK_SKEW_S)
    except BadRequest:
        # A server without a list of batches.
        return []
    if client.keeps_names:
        return [state.batch_id for state in states if state.name == batch.name]
    latest = batch.created_s + _LONGEST_CREATE_S + _CLOCK_SKEW_S - client.clock_lead_s
    return [
        state.batch_id
        for state in states
        if state.total == batch.size and (state.created_s or 0.0) <= latest and state.batch_id not in known
    ]


async def retry_transient_errors(
    work: Callable[[], Awaitable[T]], patience_s: float = _PATIENCE_S, limited_patience_s: float = _PATIENCE_S
) -> T:
    """
    Call a function, and retry after transient errors at growing intervals.

    `limited_patience_s` is the patience after a rate limit: the queue of an account may be full for hours.
    """
    began_at = anyio.current_time()
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except BackendError as error:
            limit_s = limited_patience_s if isinstance(error, RateLimited) else patience_s
            if not error.retryable or anyio.current_time() + pause_s > began_at + limit_s:
                raise
            log.warning("batch_api_failed", error_type=type(error).__name__, again_in_s=pause_s)
            wanted = getattr(error, "retry_after_s", None) or 0.0
        await anyio.sleep(max(pause_s, wanted))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
