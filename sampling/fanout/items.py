"""The items of a fan-out: what is asked, what became of it, and the events that tell of it."""

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, final

import attrs

from sampling._arguments import shown, wrong_type
from sampling.hooks import Event
from sampling.messages import Action
from sampling.results import HookFailure, SamplingResult
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "FanOutEvent",
    "FanOutFinished",
    "FanOutResult",
    "FanOutStarted",
    "FanOutStatus",
    "Item",
    "ItemFinished",
    "ItemOutcome",
    "ItemStatus",
    "as_item",
]

T = TypeVar("T")

ItemStatus: TypeAlias = Literal["succeeded", "failed", "errored"]
"""How an item ended: with a valid answer, without one, or with an exception."""

FanOutStatus: TypeAlias = Literal["completed", "halted"]
"""How a run ended: with all of its items, or with the one that halted it."""


Restore: TypeAlias = Callable[[str, object, int], tuple[SamplingResult[Any] | None, Exception | None]]
"""Makes a result or an error of a record, of what was given as the item, and of its index."""


@attrs.frozen
class Item(Generic[T]):
    """One thing to ask: its place among all of them, the key that the caller knows it by, and the question."""

    index: int
    key: str
    action: Action[T]
    item_id: str
    """`run_id:key:index`: unique everywhere. It is the parent_id of the item's call."""


def as_item(given: object, index: int, run_id: str) -> Item[Any]:
    """Make an item of what the caller gave: an action, its text, or a pair of a key and one of these."""
    key: object = index
    action = given
    if isinstance(given, tuple):
        if len(given) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise wrong_type(f"item {index}", cast("object", given), "an action, a text, or a pair (key, action)")
        key, action = cast("tuple[object, object]", given)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise wrong_type(f"the key of item {index}", key, "a str or an int")
    if isinstance(action, str):
        action = Action(action)
    elif not isinstance(action, Action):
        raise wrong_type(f"item {index}", action, "an action, a text, or a pair (key, action)")
    name = str(key)
    if not name.isascii() and not _is_text(name):
        raise ValueError(f"the key of item {index} must be text that can be encoded, got {shown(key)}")
    return Item(index, name, cast("Action[Any]", action), f"{run_id}:{name}:{index}")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@final
class ItemOutcome(Generic[T]):
    """
    What became of one item.

    One that was read back from a journal makes its `result` and `error` when they are first looked at.
    """

    __slots__ = ("_error", "_result", "_stored", "_usage", "index", "key", "status")

    index: int
    """The item's place among all items, counted from 0."""

    key: str
    status: ItemStatus

    def __init__(
        self,
        index: int,
        key: str,
        status: ItemStatus,
        result: SamplingResult[T] | None = None,
        error: Exception | None = None,
        *,
        usage: Usage | tuple[int, int, float] | None = None,
        stored: "tuple[Restore, str, object] | None" = None,
    ) -> None:
        self.index = index
        self.key = key
        self.status = status
        self._usage = usage if usage is not None else result.usage if result is not None else NO_USAGE
        self._result = result
        self._error = error
        self._stored = stored

    @property
    def result(self) -> SamplingResult[T] | None:
        """What `sample()` returned for this item; None if it raised."""
        if self._stored is not None:
            self._look_up(*self._stored)
        return self._result

    @property
    def error(self) -> Exception | None:
        """What `sample()` raised for this item, if it raised."""
        if self._stored is not None:
            self._look_up(*self._stored)
        return self._error

    @property
    def usage(self) -> Usage:
        """What the item spent, also if it ended with an exception."""
        if isinstance(self._usage, tuple):
            self._usage = Usage(*self._usage)
        return self._usage

    def _look_up(self, restore: "Restore", record: str, given: object) -> None:
        self._result, self._error = restore(record, given, self.index)
        self._stored = None

    def __repr__(self) -> str:
        return f"<ItemOutcome {self.index} {self.key!r}: {self.status}>"


@attrs.frozen(kw_only=True, repr=False)
class FanOutResult(Generic[T]):
    """What a fan-out gave: an outcome for every item, in the order of the items, up to the one that halted it."""

    run_id: str
    status: FanOutStatus
    outcomes: tuple[ItemOutcome[T], ...]
    halted_by: int | None
    """The index of the item that halted the run; its outcome is the last one."""

    usage: Usage
    """Everything that was spent: before a resume, and by items that were cancelled, too."""

    maybe_billed_twice: tuple[int, ...] = ()
    """Items that an earlier process had begun and not finished, and that were asked again: by index."""

    hook_failures: tuple[HookFailure, ...] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts().items() if count)
        halted = "" if self.halted_by is None else f" by item {self.halted_by}"
        tokens = f" · {self.usage.total_tokens:,} tokens" if self.usage.total_tokens else ""
        cost = f" · cost {self.usage.cost:.6g}" if self.usage.cost else ""
        return f"{self.status}{halted}: {len(self.outcomes):,} items ({counts or 'none'}){tokens}{cost}"

    def __repr__(self) -> str:
        return f"<FanOutResult {self}>"

    def counts(self) -> dict[ItemStatus, int]:
        """Count the outcomes by how they ended."""
        counts: dict[ItemStatus, int] = {"succeeded": 0, "failed": 0, "errored": 0}
        for outcome in self.outcomes:
            counts[outcome.status] += 1
        return counts


@attrs.frozen(kw_only=True)
class FanOutEvent(Event):
    """What every event of a fan-out tells. Its `sampling_id` is the id of the run, or of the item."""

    run_id: str


@attrs.frozen(kw_only=True)
class FanOutStarted(FanOutEvent):
    """A run is about to read its first item."""

    strategy: str
    """The name of the strategy's class."""

    total: int | None
    """How many items there are, where that can be known."""

    recorded: int
    """How many of them the journal has an outcome for already."""

    max_concurrency: int


@attrs.frozen(kw_only=True)
class ItemFinished(FanOutEvent):
    """An item has its outcome; with a journal, it is on disk by now. Items that were cancelled have none."""

    outcome: ItemOutcome[Any]
    recorded: bool
    """Whether it came from the journal, so that nothing was asked."""


@attrs.frozen(kw_only=True)
class FanOutFinished(FanOutEvent):
    """A run is over: comes exactly once, also after an error or a cancellation."""

    status: str
    """ "completed" or "halted"; "stopped" if it was left or drained before its end, "failed" if it raised."""

    usage: Usage
    error: BaseException | None
