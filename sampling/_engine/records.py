"""The result queue: the records of one call, in the order in which its strategy sees them."""

from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Generic, TypeVar, overload

from sampling.errors import WrongThread
from sampling.messages import Request
from sampling.results import Slice

__all__ = ["OrderedQueue", "Prefix", "ResultQueue"]

T = TypeVar("T")
S = TypeVar("S")

_ANSWERED = frozenset({"valid", "invalid"})


class Prefix(Sequence[S]):
    """A read-only view of the first items of a growing list. It is cheap to create, and does not grow."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[S], length: int | None = None) -> None:
        self._items = items
        self._length = len(items) if length is None else length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[S]: ...
    def __getitem__(self, index: int | slice) -> S | Sequence[S]:
        length = self._length
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(length))]
        place = index if index >= 0 else length + index
        if not 0 <= place < length:
            raise IndexError(f"index {index} is out of range: there are {length}")
        return self._items[place]

    def __iter__(self) -> Iterator[S]:
        for index in range(self._length):
            yield self._items[index]

    def __repr__(self) -> str:
        return repr(list(self))


class ResultQueue(Generic[T]):
    """
    The records of one call. It has room for all of them: `put` never waits, so a cancellation loses nothing.

    `ready` holds the slices that the strategy may decide on, in the order in which it sees them.
    """

    def __init__(self) -> None:
        self.records: list[Slice[T]] = []
        self.slices: list[Slice[T]] = []
        self.ready: list[Slice[T]] = self.slices
        self._seen = 0
        self._thread = get_ident()

    def put(self, record: Slice[T], *, counts: bool = True) -> None:
        """Add one record. If it does not count, the strategy never sees it."""
        if get_ident() != self._thread:
            raise WrongThread("a record can only be added in the thread that the call runs in")
        self.records.append(record)
        if counts and record.outcome in _ANSWERED:
            self.slices.append(record)

    def newly_ready(self) -> Iterator[Sequence[Slice[T]]]:
        """
        Yield the slices to decide on, once for each slice that became ready since the last time.

        A caller that has decided stops here: the strategy does not see the rest.
        """
        while self._seen < len(self.ready):
            self._seen += 1
            yield Prefix(self.ready, self._seen)

    def seen(self) -> Sequence[Slice[T]]:
        """Return the slices that the strategy has decided on so far."""
        return Prefix(self.ready, self._seen)

    def candidates(self, *, decided: bool) -> Sequence[Slice[T]]:
        """Return the slices to choose the answer from, in the order in which the strategy saw them."""
        return self.ready

    def longest_answer(self) -> int:
        """Return the output tokens of the longest answer so far."""
        answers = [record.generation for record in self.slices if record.generation is not None]
        whole = [answer.usage.output_tokens for answer in answers if answer.finish_reason != "cut"]
        return max(whole, default=0)


class OrderedQueue(ResultQueue[T]):
    """
    The queue of a deterministic call. Slices are ready in the order of (attempt, subsample), without gaps.

    So no decision depends on which of two answers was faster.
    """

    def __init__(self, subsamples: int) -> None:
        super().__init__()
        self.ready = []
        self.last: Slice[T] | None = None
        """The record that was released last, whatever its outcome."""

        self._held = _InOrder[T](subsamples)

    def put(self, record: Slice[T], *, counts: bool = True) -> None:
        """Add one record."""
        super().put(record, counts=counts)
        self._held.put(record)

    def close(self, subsample: int) -> None:
        """Mark a subsample as ended: it adds no more records."""
        self._held.close(subsample)

    def newly_ready(self) -> Iterator[Sequence[Slice[T]]]:
        """Yield the slices to decide on after every record, as far as there is no gap before it."""
        # One record at a time: once the call is decided, those that follow must not count, however early they came.
        for record in self._held.release():
            self.last = record
            if record.outcome in _ANSWERED:
                self.ready.append(record)
                self._seen += 1
            yield Prefix(self.ready)

    def candidates(self, *, decided: bool) -> Sequence[Slice[T]]:
        """Return the slices to choose the answer from, in the order in which the strategy saw them, or would have."""
        # The call ended before a decision: slices that were held back for the sake of order count, too.
        return self.ready if decided else sorted(self.slices, key=order_key)

    def known_up_to(self, record: Slice[T]) -> list[Slice[T]]:
        """Return all slices that rank no later than this one, with or without gaps."""
        return sorted((s for s in self.slices if order_key(s) <= order_key(record)), key=order_key)


def order_key(record: Slice[T] | Request) -> tuple[int, int]:
    """Rank records as a deterministic call does."""
    return record.attempt, record.subsample


class _InOrder(Generic[T]):
    """Holds records back until all that rank before them have arrived, or never will."""

    def __init__(self, subsamples: int) -> None:
        self._waiting: dict[tuple[int, int], Slice[T]] = {}
        self._closed = [False] * subsamples
        self._next = (0, 0)

    def put(self, record: Slice[T]) -> None:
        self._waiting[order_key(record)] = record

    def close(self, subsample: int) -> None:
        self._closed[subsample] = True

    def release(self) -> Iterator[Slice[T]]:
        while self._waiting:
            attempt, subsample = self._next
            record = self._waiting.pop(self._next, None)
            if record is None and not self._closed[subsample]:
                return
            self._next = (attempt, subsample + 1) if subsample + 1 < len(self._closed) else (attempt + 1, 0)
            if record is not None:
                yield record
