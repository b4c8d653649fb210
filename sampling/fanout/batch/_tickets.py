"""Requests that wait for the answer of a batch."""

import copy
import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from sampling.backends._deferral import DeferredReply
from sampling.fanout.items import Item

if TYPE_CHECKING:
    from sampling.fanout.batch._lane import Lane

__all__ = ["ItemRequests", "ParkedRequest"]


class ParkedRequest:
    """One request, until it has an answer or an error."""

    def __init__(self, lane: "Lane", item: Item[Any], slot: int, custom_id: str, body: bytes) -> None:
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
        self._error: Exception | None = None
        self._settled = anyio.Event()

    async def wait(self) -> DeferredReply:
        """Wait for the reply, or raise the error that prevents it."""
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
    ) -> None:
        self.price_factor = price_factor
        self._item = item
        self._slot = slot
        self._run_id = run_id
        self._has_batches = has_batches
        self._lane_of = lane_of
        self._accept = accept
        self._seen: Counter[str] = Counter()
        self.ids: list[str] = []
        """The ids of its requests so far."""

    def takes(self, backend: object) -> bool:
        """Return whether a batch API answers for this backend."""
        return self._has_batches(backend)

    def park(self, backend: object, model: str, body: bytes) -> ParkedRequest:
        """
        Take a request.

        Its id is the same when another process runs the item again: it names the item, the request, and how many
        equal requests the item made before it. Equal requests are interchangeable, so their order does not matter.
        """
        digest = hashlib.sha256(b"%b\n%d\n%b" % (self._run_id.encode(), self._slot, body)).hexdigest()[:40]
        custom_id = f"{digest}-{self._seen[digest]}"
        self._seen[digest] += 1
        self.ids.append(custom_id)
        request = ParkedRequest(self._lane_of(backend, model), self._item, self._slot, custom_id, body)
        self._accept(request)
        return request
