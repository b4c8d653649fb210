"""Who is asking: the ids of the attempt that the running code belongs to."""

import os
import time
from contextvars import ContextVar, Token, copy_context
from typing import Any

import attrs
from structlog.contextvars import bind_contextvars

from sampling._arguments import wrong_type
from sampling.messages import Identity, Request
from sampling.usage import NO_USAGE, Usage

__all__ = ["count_request", "current", "report_usage"]


@attrs.define
class Place:
    """What the context variable holds: which call and which attempt, and what its backend says it has used so far."""

    sampling_id: str
    parent_id: str | None
    reported: Usage | None
    outer: "Place | None"
    """Whose part this is, if a layer keeps account of a part of an attempt by itself."""

    request: Request | None
    """What the attempt asks, with its ids; None between attempts."""

    def count_request(self) -> None:
        """Count one more request; an attempt with a budget also asks whether there is room for it."""


@attrs.define
class ItemPlace(Place):
    """The place of one item of a fan-out. Its sampling_id is the item's id, which its call has as its parent."""

    spent: Usage = NO_USAGE
    """What the item's attempts used, whatever became of them."""

    requests: int = 0
    """How many requests they sent."""

    calls: int = 0
    """How many calls were made for the item itself; a strategy that goes in stages makes several."""

    def next_call(self) -> str:
        """Return a name for the item's next call that stays the same when another process runs the item again."""
        self.calls += 1
        return f"{self.sampling_id}:{self.calls}"

    def settle(self, used: Usage | None) -> None:
        """Count a request that has ended, and what it used, if anyone can say."""
        self.requests += 1
        if used is not None and used is not NO_USAGE:
            self.spent += used


_place: ContextVar[Place | None] = ContextVar("sampling_place", default=None)


def _log_variable(key: str) -> ContextVar[Any]:
    """Return the variable behind a key of structlog's context, so that binding it is a plain `set`."""
    return copy_context().run(bind_contextvars, **{key: ""})[key].var


_logged_call = _log_variable("sampling_id")
_logged_iteration = _log_variable("iteration_id")
_logged_item = _log_variable("item_id")


@attrs.define
class EnteredCall:
    """A call that has begun, and what was current before it."""

    _place: Place
    _logged_before: Any
    """The attempt that the call is made from, as log lines have it."""

    _place_token: Token[Place | None]
    _call_token: Token[Any]

    def leave_attempts(self) -> None:
        """Be between attempts again."""
        _place.set(self._place)
        _logged_iteration.set(self._logged_before)

    def leave(self) -> None:
        """Put back what was current before the call, once its attempts have been left."""
        _logged_call.reset(self._call_token)
        _place.reset(self._place_token)


def current() -> Identity | None:
    """Return the ids of the call and the attempt that this code runs in, or None outside of any call."""
    place = _place.get()
    if place is None:
        return None
    request = place.request
    if request is None:
        return Identity(sampling_id=place.sampling_id, parent_id=place.parent_id)
    return Identity(
        sampling_id=place.sampling_id,
        parent_id=place.parent_id,
        iteration=request.iteration,
        iteration_id=request.iteration_id,
        subsample=request.subsample,
        attempt=request.attempt,
    )


def report_usage(usage: Usage) -> None:
    """
    Say what the running attempt has used so far; a later report replaces an earlier one.

    For backends: a generation that is cancelled or fails never returns its usage,
    but what it had used by then is paid for all the same. Outside an attempt this does nothing.
    """
    if not isinstance(usage, Usage):
        raise wrong_type("usage", usage, "a Usage")
    place = _place.get()
    if place is not None:
        place.reported = usage


def count_request() -> None:
    """
    Say that one more request is about to be sent for the running attempt than the engine knows of.

    For layers that ask more than once. It counts against the budget, and raises `BudgetExceeded` if there is no room.
    Outside an attempt this does nothing.
    """
    place = _place.get()
    while place is not None and place.outer is not None:
        place = place.outer
    if place is not None:
        place.count_request()


def apart() -> Place | None:
    """Return a place with the current ids, but with an account of its own of what is reported."""
    place = _place.get()
    return None if place is None else Place(place.sampling_id, place.parent_id, None, place, place.request)


def enter_item(item_id: str, parent_id: str | None) -> ItemPlace:
    """Begin an item in a context of its own, which nobody has to put back as it was."""
    place = ItemPlace(item_id, parent_id, None, None, None)
    _place.set(place)
    _logged_item.set(item_id)
    return place


def current_item() -> ItemPlace | None:
    """Return the item that a call which starts here is made for, if it is not nested in another call."""
    place = _place.get()
    return place if isinstance(place, ItemPlace) else None


def enter_call(sampling_id: str, parent_id: str | None) -> EnteredCall:
    """Begin a call, which is between attempts at first; its id is in the log lines of this context from now on."""
    place = Place(sampling_id, parent_id, None, None, None)
    return EnteredCall(place, _logged_iteration.get(), _place.set(place), _logged_call.set(sampling_id))


def enter_attempt(attempt: Place, iteration_id: str) -> None:
    """Begin an attempt. It need not be left: another one, or the rest of the call, takes its place."""
    _place.set(attempt)
    _logged_iteration.set(iteration_id)


def enter_part(part: Place) -> Token[Place | None]:
    """Begin a part of an attempt that keeps an account of its own; `leave_part` ends it."""
    return _place.set(part)


def leave_part(entered: Token[Place | None]) -> None:
    """End a part of an attempt."""
    _place.reset(entered)


def parent_id() -> str | None:
    """Return what a call that starts here has as its parent."""
    place = _place.get()
    if place is None:
        return None
    return place.sampling_id if place.request is None else place.request.iteration_id


def new_sampling_id() -> str:
    """Make an id that sorts by time (nanoseconds) and is unique without asking anyone (64 random bits)."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def iteration_id(sampling_id: str, iteration: int) -> str:
    """Make the id of one attempt; seven digits, so that they sort within a call too."""
    return f"{sampling_id}-{iteration:07d}"
