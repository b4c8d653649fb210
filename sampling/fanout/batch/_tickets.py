"""Requests that wait for the answer of a batch."""

import copy
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

import anyio

from sampling.backends._deferral import DeferredReply
from sampling.fanout.items import Item

if TYPE_CHECKING:
    from sampling.fanout.batch._lane import Lane

__all__ = ["ItemRequests", "ParkedRequest", "digest_of"]

_MOST_RETRIES: Final = 16
"""The number of equal requests among which those that were paid for are looked for."""


def digest_of(custom_id: str) -> str:
    """Return the part of an id that equal requests of an item share."""
    return custom_id.partition("-")[0]


class ParkedRequest:
    """One request, until it has an answer or an error."""

    def __init__(
        self, lane: "Lane", item: Item[Any], slot: int, custom_id: str, body: bytes, rejected: list[str]
    ) -> None:
        """Add the id to `rejected` if the reply can't be read."""
        self.lane = lane
        self.item = item
        self.slot = slot
        self.custom_id = custom_id
        self.body = body
        self.tries = 0
        """The number of batches that it was in."""

        self.is_sent = False
        self.is_abandoned = False
        """True once nothing waits for it any more."""

        self.reply: DeferredReply | None = None
        self.replay: Callable[[], Awaitable[None]] | None = None
        """Answers it from the journal, if that has its answer."""

        self._rejected = rejected
        self._error: Exception | None = None
        self._settled = anyio.Event()

    async def wait(self) -> DeferredReply:
        """Wait for the reply, or raise the error that prevents it."""
        if self.replay is not None:
            # The answer was paid for, so it is read and counted even if nothing needs it any more.
            with anyio.CancelScope(shield=True):
                await self.replay()
        try:
            await self._settled.wait()
        except BaseException:
            self.is_abandoned = True
            raise
        if self._error is not None:
            raise self._error
        if self.reply is None:
            raise RuntimeError("a request was settled without a reply")
        return self.reply

    def answer(self, reply: DeferredReply) -> None:
        """Set the reply."""
        self.reply = reply
        self._settled.set()

    def fail(self, error: Exception) -> None:
        """Set the error. It is copied, because many requests may share it and each is raised with a traceback."""
        self._error = error
        # Some exceptions of others can't be copied.
        with suppress(Exception):
            self._error = copy.copy(error)
        self._settled.set()

    def reject(self) -> None:
        """Declare that the reply can't be read, so that no later call gets it again."""
        self._rejected.append(self.custom_id)

    def refuse(self, error: Exception) -> None:
        """Set the error of a request that the provider has not run, so that it cost nothing."""
        self.is_sent = False
        self.fail(error)


class ItemRequests:
    """Takes the requests of one item. It is the `Deferral` of the item's call."""

    def __init__(
        self,
        item: Item[Any],
        slot: int,
        *,
        run_id: str,
        price_factor: float,
        has_batches: Callable[[object], bool],
        lane_of: Callable[[object, str], "Lane"],
        accept: Callable[[ParkedRequest], None],
        is_known: Callable[[str], bool],
    ) -> None:
        """Call `is_known` with an id to learn whether a batch has answered such a request, or will answer it."""
        self.price_factor = price_factor
        self.item = item
        self.slot = slot
        self._run_id = run_id
        self._has_batches = has_batches
        self._lane_of = lane_of
        self._accept = accept
        self._is_known = is_known
        self._numbers: dict[str, Iterator[int]] = {}
        self.ids: list[str] = []
        """The ids of its requests so far."""

        self.has_new = False
        """True if a request had to be sent, because no batch answers it."""

        self.rejected: list[str] = []
        """The ids of those whose replies can't be read."""

    def takes(self, backend: object) -> bool:
        """Return whether a batch API answers for this backend."""
        return self._has_batches(backend)

    def park(self, backend: object, model: str, body: bytes) -> ParkedRequest:
        """
        Take a request.

        Its id is the same when another process runs the item again: it names the item, the request, and how many
        equal requests the item made before it. Equal requests are interchangeable, so their order does not matter.
        """
        digest = hashlib.sha256(b"%b\n%d\n%b" % (self._run_id.encode(), self.slot, body)).hexdigest()[:40]
        if digest not in self._numbers:
            self._numbers[digest] = self._count(digest)
        custom_id = f"{digest}-{next(self._numbers[digest])}"
        self.ids.append(custom_id)
        self.has_new |= not self._is_known(custom_id)
        lane = self._lane_of(backend, model)
        request = ParkedRequest(lane, self.item, self.slot, custom_id, body, self.rejected)
        self._accept(request)
        return request

    def _count(self, digest: str) -> Iterator[int]:
        """
        Return the numbers of equal requests, beginning with those that a batch answers.

        The first may have failed, and the second one, which a layer or a strategy has sent after it, was paid for.
        """
        known = [number for number in range(_MOST_RETRIES) if self._is_known(f"{digest}-{number}")]
        return chain(known, (number for number in count() if number not in known))
