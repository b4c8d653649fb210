"""The base class of clients for batch APIs."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import ClassVar, Final, Literal, Self, TypeAlias
from urllib.parse import quote

import attrs

from sampling.backends._deferral import DeferredReply
from sampling.backends.http._fields import Json, list_of_objects
from sampling.backends.http._rest import RestClient

__all__ = ["BatchClient", "BatchProblem", "BatchReply", "BatchState", "ReplyKind"]

_PAGES: Final = 20

ReplyKind: TypeAlias = Literal["answered", "expired", "cancelled", "failed"]
"""The outcome of a request. "answered" may be an error. The others were not run and cost nothing."""


@attrs.frozen
class BatchReply:
    """The outcome of one request of a batch."""

    custom_id: str
    kind: ReplyKind
    reply: DeferredReply | None = None
    """The response, if the request was answered."""


@attrs.frozen
class BatchProblem:
    """A reason why a provider refused a whole batch."""

    error: Json
    """The error, as in a response with an error status."""

    line: int | None = None
    """The number of the affected request, counted from 1."""

    is_about_limit: bool = False
    """True if the queue of the account is full, so that a smaller or a later batch may be accepted."""


@attrs.frozen(kw_only=True)
class BatchState:
    """The state of a batch at the provider."""

    batch_id: str
    status: str
    """The status in the words of the provider."""

    ended: bool
    total: int = 0
    done: int = 0
    """The number of requests that have an answer so far."""

    failed: int = 0
    created_s: float | None = None
    name: str | None = None
    """The name that `create` was given, if the provider keeps it."""

    files: tuple[str, ...] = ()
    """The files with the replies, once the batch has ended."""

    problems: tuple[BatchProblem, ...] = ()
    """The reasons why the provider refused the whole batch."""

    not_run: ReplyKind | None = None
    """The outcome of requests without a line, if the batch ended before all were run."""


class BatchClient(ABC):
    """A client of a provider's batch API. It is an async context manager."""

    max_requests: ClassVar[int]
    """The maximum number of requests in a batch."""

    max_bytes: ClassVar[int]
    """The maximum size of a batch."""

    keeps_names: ClassVar[bool]
    """Whether the provider keeps the name of a batch, so that it can be found by it."""

    after_parameter: ClassVar[str]
    """The parameter that continues a list after a batch."""

    def __init__(self, rest: RestClient, url: str, *, where: str, max_line_bytes: int) -> None:
        """Set the address of the batches."""
        self._rest = rest
        self._url = url
        self.where = where
        """The provider, its address and the endpoint. A batch can be found only where it was created."""

        self.max_line_bytes = max_line_bytes
        """The maximum size of a reply. A larger one is refused."""

    async def __aenter__(self) -> Self:
        await self._rest.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._rest.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102 - it shields itself, with a limit

    @abstractmethod
    def line(self, custom_id: str, body: bytes) -> bytes:
        """Return a request in the format of a batch."""

    async def upload(self, lines: Sequence[bytes], name: str) -> str | None:
        """Upload the requests, and return the id of the file. None if `create` sends them itself."""
        return None

    @abstractmethod
    async def create(self, lines: Sequence[bytes], file_id: str | None, name: str) -> str:
        """Create a batch, and return its id."""

    async def state(self, batch_id: str) -> BatchState:
        """Return the state of a batch."""
        return self._state(await self._rest.json("GET", self._url_of(batch_id)))

    async def recent(self, since_s: float) -> list[BatchState]:
        """Return the batches that were created since this time, by the clock of this machine, the newest first."""
        found: list[BatchState] = []
        after = ""
        for _ in range(_PAGES):
            page = await self._rest.json("GET", f"{self._url}?limit=100{after}")
            states = [self._state(one) for one in list_of_objects(page, "data")]
            limit_s = since_s - self._rest.clock_lead_s
            new = [state for state in states if state.created_s is None or state.created_s >= limit_s]
            found += new
            if len(new) < len(states) or not states or page.get("has_more") is not True:
                break
            after = f"&{self.after_parameter}={quote(states[-1].batch_id, safe='')}"
        return found

    @property
    def clock_lead_s(self) -> float:
        """How far the clock of this machine is ahead of the provider's, as its last response shows."""
        return self._rest.clock_lead_s

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to cancel a batch. Requests that are finished by then are kept and billed."""
        await self._rest.json("POST", f"{self._url_of(batch_id)}/cancel")

    @abstractmethod
    def parse(self, line: Json) -> BatchReply | None:
        """Parse a line of the results, or return None if it is malformed."""

    def _url_of(self, batch_id: str) -> str:
        return f"{self._url}/{quote(batch_id, safe='')}"

    @abstractmethod
    def _state(self, batch: Json) -> BatchState:
        """Return the state that a response describes."""

    @abstractmethod
    def _file_url(self, file: str) -> str:
        """Return the URL of a file."""

    async def read(self, state: BatchState, take: Callable[[bytes], Awaitable[bool]]) -> None:
        """Read the results of a batch, and pass each line to `take`, until that returns False."""
        for file in state.files:
            await self._rest.read_lines(self._file_url(file), take, max_bytes=self.max_line_bytes)
