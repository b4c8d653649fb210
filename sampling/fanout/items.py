"""Items, their outcomes, and the events of a run."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, final

import attrs

from sampling._arguments import short_repr, wrong_type
from sampling.errors import BudgetExceeded
from sampling.hooks import Event
from sampling.messages import Action
from sampling.parts import Media, Part, Text, ToolResult
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
    "StopReason",
]

T = TypeVar("T")

ItemStatus: TypeAlias = Literal["succeeded", "failed", "errored"]
"""The end of an item: a valid answer, no valid answer, or an exception."""

FanOutStatus: TypeAlias = Literal["completed", "halted"]
"""The end of a run: after all items, or at the item that halted it."""


StopReason: TypeAlias = Literal["budget", "deadline"]
"""The limit of a budget that ended a run before its last item."""

HOW_TO_GO_ON = "The remaining items are open: call again with the same journal and a larger budget."


Restored: TypeAlias = tuple[SamplingResult[Any] | None, Exception | None, tuple[str, ...]]
"""The result or the error of an item, and the notes on it."""

Restore: TypeAlias = Callable[[str, object, int], Restored]
"""Restores an outcome from a journal record, the item as the caller gave it, and its index."""


@attrs.frozen
class Item(Generic[T]):
    """One item to sample."""

    index: int
    key: str
    action: Action[T]
    item_id: str
    """`run_id:key:index`, which is globally unique. It is the `parent_id` of the item's call."""


_ALLOWED_ITEM = "an action, a text, a list of parts, or a pair (key, action)"


def is_parts(given: object) -> bool:
    """Return whether an item is a sequence of parts."""
    if not isinstance(given, list | tuple) or not given:
        return False
    return isinstance(cast("Sequence[object]", given)[0], Text | Media | ToolResult)


def as_item(given: object, index: int, run_id: str) -> Item[Any]:
    """
    Convert an item as the caller gave it.

    That is an action, a text, a list of parts, or a pair of a key and one of these.
    """
    key: object = index
    action = given
    if isinstance(given, tuple) and not is_parts(cast("object", given)):
        if len(given) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise wrong_type(f"item {index}", cast("object", given), _ALLOWED_ITEM)
        key, action = cast("tuple[object, object]", given)
        # Not int: NumPy's integers are not subclasses of it.
        if isinstance(key, bool) or not isinstance(key, str | Integral):
            raise wrong_type(f"the key of item {index}", key, "a str or an int")
    if is_parts(action):
        action = Action(cast("Sequence[Part]", action))
    elif isinstance(action, str):
        # A plain str, because NumPy's can't be sent or compared like one.
        action = Action(str(action))
    elif not isinstance(action, Action):
        raise wrong_type(f"item {index}", action, _ALLOWED_ITEM)
    name = str(key)
    if not name.isascii() and not _is_text(name):
        raise ValueError(f"the key of item {index} must be text that can be encoded, got {short_repr(key)}")
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
    The outcome of one item.

    An outcome from a journal decodes its `result` and `error` on first access.
    """

    __slots__ = ("_counts", "_error", "_notes", "_result", "_stored", "_usage", "index", "key", "status")

    index: int
    """The position of the item, counted from 0."""

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
        usage: Usage | tuple[int, int, float, int, int] | None = None,
        counts: tuple[int, int] | None = None,
        stored: "tuple[Restore, str, object] | None" = None,
    ) -> None:
        self.index = index
        self.key = key
        self.status = status
        self._usage = usage if usage is not None else result.usage if result is not None else NO_USAGE
        self._counts = counts
        self._result = result
        self._error = error
        self._notes: tuple[str, ...] = ()
        self._stored = stored

    @property
    def result(self) -> SamplingResult[T] | None:
        """The result of `sample()`, or None if it raised."""
        if self._stored is not None:
            self._load(*self._stored)
        return self._result

    @property
    def error(self) -> Exception | None:
        """The exception that `sample()` raised, if any."""
        if self._stored is not None:
            self._load(*self._stored)
        return self._error

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what the journal could not store or restore exactly."""
        if self._stored is not None:
            self._load(*self._stored)
        return self._notes

    def set_notes(self, notes: tuple[str, ...]) -> None:
        """Set the notes. The journal calls this when it stores the outcome."""
        self._notes = notes

    @property
    def usage(self) -> Usage:
        """The usage of the item, even after an error."""
        if isinstance(self._usage, tuple):
            self._usage = Usage(*self._usage)
        return self._usage

    @property
    def attempts(self) -> int:
        """The number of attempts, even after an error."""
        return self._counted()[0]

    @property
    def requests(self) -> int:
        """The number of requests sent, including judges and retries, even after an error."""
        return self._counted()[1]

    def _counted(self) -> tuple[int, int]:
        if self._counts is None:
            attempts = () if self.result is None else self.result.attempts
            self._counts = len(attempts), sum([attempt.requests for attempt in attempts])
        return self._counts

    def _load(self, restore: "Restore", record: str, given: object) -> None:
        self._result, self._error, self._notes = restore(record, given, self.index)
        self._stored = None

    def __repr__(self) -> str:
        return f"<ItemOutcome {self.index} {self.key!r}: {self.status}>"


def cut_off_by(outcome: ItemOutcome[Any]) -> StopReason | None:
    """
    Return the limit of a budget that ended the item without a valid answer, or None.

    A call without any answer raises `BudgetExceeded` if a further request of it, such as a retry, had no room.
    """
    result = outcome.result
    if result is None:
        return "budget" if isinstance(outcome.error, BudgetExceeded) else None
    if result.success or result.stop_reason not in {"budget", "deadline"}:
        return None
    return "deadline" if result.stop_reason == "deadline" else "budget"


@attrs.frozen(kw_only=True, repr=False)
class FanOutResult(Generic[T]):
    """
    The outcomes of a fan-out, in order.

    They end with the item that halted the run, if one did.
    """

    run_id: str
    status: FanOutStatus
    outcomes: tuple[ItemOutcome[T], ...]
    halted_by: int | None
    """The index of the item that halted the run. Its outcome is the last one."""

    usage: Usage
    """The total usage, including that of cancelled items and of the time before a resume."""

    stop_reason: StopReason | None = None
    """The limit of the budget that ended the run. Items without an outcome are open, and a resume samples them."""

    maybe_billed_twice: tuple[int, ...] = ()
    """Indexes of items that an earlier process or a lost worker did not finish, and that were sampled again."""

    hook_failures: tuple[HookFailure, ...] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts().items() if count)
        halted = "" if self.halted_by is None else f" by item {self.halted_by}"
        if self.stop_reason is not None:
            halted = f" by the {self.stop_reason}"
        tokens = f" · {self.usage.total_tokens:,} tokens" if self.usage.total_tokens else ""
        cost = f" · cost {self.usage.cost:.6g}" if self.usage.cost else ""
        return f"{self.status}{halted}: {len(self.outcomes):,} items ({counts or 'none'}){tokens}{cost}"

    def __repr__(self) -> str:
        return f"<FanOutResult {self}>"

    def counts(self) -> dict[ItemStatus, int]:
        """Count the outcomes by status."""
        counts: dict[ItemStatus, int] = {"succeeded": 0, "failed": 0, "errored": 0}
        for outcome in self.outcomes:
            counts[outcome.status] += 1
        return counts


@attrs.frozen(kw_only=True)
class FanOutEvent(Event):
    """
    The base of all events of a run.

    Its `sampling_id` is the id of the run or of the item.
    """

    run_id: str


@attrs.frozen(kw_only=True)
class FanOutStarted(FanOutEvent):
    """Emitted before a run reads its first item."""

    total: int | None
    """The number of items, if it is known."""

    recorded: int
    """The number of items that have an outcome in the journal already."""

    max_concurrency: int


@attrs.frozen(kw_only=True)
class ItemFinished(FanOutEvent):
    """
    Emitted when an item has an outcome.

    Cancelled items have none.
    With a journal, the outcome is on disk by then.
    """

    outcome: ItemOutcome[Any]
    recorded: bool
    """Whether the outcome came from the journal, without a call."""


@attrs.frozen(kw_only=True)
class FanOutFinished(FanOutEvent):
    """
    Emitted exactly once, at the end of a run.

    It is emitted even after an error or a cancellation.
    """

    status: str
    """One of "completed", "halted", "stopped" (left or drained before its end) and "failed" (it raised)."""

    usage: Usage
    error: BaseException | None
