"""Match the items of a call with those that a journal has recorded."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["Match", "RecordedItem", "RecordedItems"]


class RecordedItem(NamedTuple):
    """An outcome in a journal, without its record."""

    slot: int
    """The place of the outcome in the file."""

    position: int
    """The index of the item when it was last asked for, or -1 if it was no longer among the items."""

    key: str
    digest: int


class Match(NamedTuple):
    """The place of an item in a journal."""

    slot: int
    is_answered: bool
    """Whether the outcome in this place answers the question of the item."""

    is_replaced: bool = False
    """Whether the outcome in this place answers another question, and is to be replaced."""


class RecordedItems:
    """
    The recorded items of a journal, by key and by question.

    Each can be claimed once, so that items with the same key are matched in their order.
    """

    def __init__(self, recorded: Iterable[RecordedItem], interrupted: Mapping[int, int]) -> None:
        self._by_digest: defaultdict[int, deque[int]] = defaultdict(deque)
        self._by_key: defaultdict[str, list[int]] = defaultdict(list)
        self._interrupted: defaultdict[int, deque[int]] = defaultdict(deque)
        self._positions: dict[int, int] = {}
        for item in recorded:
            self._by_digest[item.digest].append(item.slot)
            self._by_key[item.key].append(item.slot)
            self._positions[item.slot] = item.position
        for slot, digest in interrupted.items():
            # The slot of an item with an outcome is claimed by that.
            if slot not in self._positions:
                self._interrupted[digest].append(slot)
        self._unclaimed = set(self._positions)
        self._taken = {*self._positions, *interrupted}
        self._next_free = max(self._taken, default=-1) + 1
        self._moved: dict[int, int] = {}

    def claim(self, key: str, digests: Iterable[int], index: int) -> Match:
        """Return the place of an item, given its key and the digests that its question may be recorded under."""
        digests = tuple(digests)
        for digest in digests:
            slot = self._first_unclaimed(self._by_digest.get(digest))
            if slot is not None:
                self._claim(slot, index)
                return Match(slot, is_answered=True)
        slots = self._by_key.get(key, ())
        # Of several outcomes with the same key, any may answer an item that is still to come.
        if len(slots) == 1 and slots[0] in self._unclaimed:
            self._claim(slots[0], index)
            return Match(slots[0], is_answered=False, is_replaced=True)
        for digest in digests:
            if self._interrupted.get(digest):
                return Match(self._interrupted[digest].popleft(), is_answered=False)
        return Match(self._new_slot(index), is_answered=False)

    def _first_unclaimed(self, slots: "deque[int] | None") -> int | None:
        while slots and slots[0] not in self._unclaimed:
            slots.popleft()
        return slots[0] if slots else None

    def _claim(self, slot: int, index: int) -> None:
        self._unclaimed.remove(slot)
        if self._positions[slot] != index:
            self._moved[slot] = index

    def _new_slot(self, index: int) -> int:
        slot = index
        if slot in self._taken:
            slot = self._next_free
        self._taken.add(slot)
        self._next_free = max(self._next_free, slot + 1)
        return slot

    def moves(self, *, exhausted: bool) -> Iterator[tuple[int, int]]:
        """Yield the slots whose items have another index than before, and those that are no longer among the items."""
        yield from self._moved.items()
        if exhausted:
            yield from ((slot, -1) for slot in self._unclaimed if self._positions[slot] != -1)
