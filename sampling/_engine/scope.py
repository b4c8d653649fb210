"""
The ids and the account of the running code, in one context variable.

A backend, a check and a hook read the ids of the attempt that they run in, whatever its siblings do,
because each subsample has a context of its own.
"""

import os
import time
from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context
from typing import Any, TypeAlias

import attrs
from structlog.contextvars import bind_contextvars

from sampling._arguments import wrong_type
from sampling._event_loop.lending import take_back
from sampling._observers.requests import report_to_observers
from sampling.budgets import Budget, Reservation
from sampling.errors import NestedTooDeeply
from sampling.messages import Identity, Request
from sampling.protocols import BackendLike
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "Scope",
    "count_request",
    "current",
    "report_cache_hit",
    "report_unsent",
    "report_usage",
    "reserve_request",
]


@attrs.define(eq=False)
class Scope:
    """
    An item, a call, an attempt, or a part of an attempt, with the requests and tokens that it used.

    A part of an attempt is what a layer or a judge accounts for by itself.
    """

    sampling_id: str
    """The id of the call, or the id of the item, which its calls have as their parent."""

    parent_id: str | None
    request: Request | None = None
    """The request of the attempt, with its ids. None outside of attempts."""

    budget: Budget | None = None
    """The budget that `count_request` counts against."""

    holding: tuple[Reservation, ...] = ()
    """The reservations of the attempts around this code, in this call and in those around it."""

    further: tuple[Reservation, ...] = ()
    """The reservation for further requests of the attempt, in addition to its own."""

    backend: object = None
    """The backend of the request in flight, with all of its layers."""

    outer: "Scope | None" = None
    """The scope that the requests of a layer's part are counted in."""

    reported: Usage | None = None
    """The usage that the backend reported for the request in flight."""

    spent: Usage = NO_USAGE
    """The usage of all requests that have ended."""

    requests: int = 0
    """The number of requests, with those of judges and of layers that send several."""

    estimated_tokens: int = 0
    """The tokens charged to a budget for requests of an item without a reported usage."""

    from_cache: bool = False
    """Whether the answer came from a cache."""

    is_item: bool = False
    attempts: int = 0
    """The number of attempts made for an item."""

    calls: int = 0
    """The number of calls made for an item. A strategy that works in stages makes several."""

    limit_backend: "Callable[[BackendLike], BackendLike] | None" = None
    """Wraps a backend in the limits of an item's run, for tiers and judges with backends of their own."""

    left_to_resume: bool = False
    """True if the next call for an item without an outcome gets the same answers again, and counts them then."""

    def count_request(self) -> None:
        """Count one more request, or raise `BudgetExceeded`."""
        if self.budget is not None:
            self.budget.count_request()
        self.requests += 1

    async def reserve_request(
        self, *, prompt_chars: int, max_tokens: int | None, used: Usage, model: str | None
    ) -> None:
        """Count one more request, and reserve what it may use in addition, or raise `BudgetExceeded`."""
        if self.budget is not None and self.holding:
            own = (self.holding[-1], *self.further)
            held = Reservation(0, len(own), sum([one.tokens for one in own]), sum([one.cost for one in own]))
            reservation = await self.budget.acquire(
                prompt_chars=prompt_chars,
                max_tokens=max_tokens,
                model=model,
                holding=(*self.holding, *self.further),
                used=used,
                held=held,
            )
            self.further = (*self.further, reservation)
        self.requests += 1

    def settle_further(self) -> None:
        """Release the reservation for further requests, now that the usage of all of them is known."""
        for reservation in self.further:
            if self.budget is not None:
                self.budget.settle_requests(reservation)
        self.further = ()

    def settle(self, used: Usage | None) -> Usage | None:
        """Add the usage of the response, else the usage that `report_usage` recorded, and return it."""
        if used is None or used is NO_USAGE or used == NO_USAGE:
            used = self.reported
        self.reported = None
        if used is not None:
            self.spent = used if self.spent is NO_USAGE else self.spent + used
        return used

    def add_requests(self, count: int, used: Usage | None) -> None:
        """Count a request that has ended and its retries, with their usage if that is known."""
        self.requests += count
        if used is not None:
            self.spent += used

    def next_call_name(self) -> str:
        """Name the next call of an item. The name is the same when another process runs the item again."""
        self.calls += 1
        return f"{self.sampling_id}:{self.calls}"


_scope: ContextVar[Scope | None] = ContextVar("sampling_scope", default=None)


def _log_variable(key: str) -> ContextVar[Any]:
    """Return the variable behind a key of structlog's context, so that binding it is a plain `set`."""
    return copy_context().run(bind_contextvars, **{key: ""})[key].var


_logged_call = _log_variable("sampling_id")
_logged_iteration = _log_variable("iteration_id")
_logged_item = _log_variable("item_id")

_nesting: ContextVar[int] = ContextVar("sampling_nesting", default=0)
"""The number of calls around this code."""

_MAX_NESTING = 32
"""The maximum nesting of calls, far below what would overflow the stack and break the event loop."""

CallTokens: TypeAlias = tuple[Token[Scope | None], Token[Any], Any, Token[int] | None]
"""What `leave_call` and `leave_attempts` restore: the scope, the logged call and iteration, and the nesting."""


def current() -> Identity | None:
    """Return the ids of the call and the attempt that this code runs in, or None outside of any call."""
    scope = _scope.get()
    if scope is None:
        return None
    request = scope.request
    if request is None:
        return Identity(sampling_id=scope.sampling_id, parent_id=scope.parent_id)
    return Identity(
        sampling_id=scope.sampling_id,
        parent_id=scope.parent_id,
        iteration=request.iteration,
        iteration_id=request.iteration_id,
        subsample=request.subsample,
        attempt=request.attempt,
    )


def report_usage(usage: Usage) -> None:
    """
    Report the usage of the running attempt so far. A later report replaces an earlier one.

    For backends: a generation that is cancelled or fails never returns its usage,
    but what it had used by then is still paid for. Outside of an attempt this does nothing.
    """
    if not isinstance(usage, Usage):
        raise wrong_type("usage", usage, "a Usage")
    scope = _scope.get()
    if scope is not None:
        scope.reported = usage
    report_to_observers(usage)


def count_request() -> None:
    """
    Count a request that the engine does not know about, before it is sent.

    For layers that send more than one request for an attempt.
    Raises `BudgetExceeded` if the budget has no room. Outside of an attempt this does nothing.
    """
    scope = _root(_scope.get())
    if scope is not None:
        scope.count_request()


async def reserve_request(*, prompt_chars: int, max_tokens: int | None, used: Usage, model: str | None = None) -> None:
    """
    Count a further request of the running attempt, and reserve its tokens and cost, before it is sent.

    For layers whose further requests cost as much as the first, which is all that the engine reserves.
    `used` is the usage of the earlier ones, and `model` that of the options. Waits for what others only reserved, and
    raises `BudgetExceeded` if the budget has no room. The engine settles it with the attempt. Outside of an attempt
    nothing is reserved.
    """
    scope = _root(_scope.get())
    if scope is not None:
        await scope.reserve_request(prompt_chars=prompt_chars, max_tokens=max_tokens, used=used, model=model)
    # A call inside, such as that of a tool, may have been cancelled while it waited for its budget.
    await take_back()


def report_unsent(layer: object) -> None:
    """
    Report that the request of the running attempt was not sent, because it was cancelled while this layer held it up.

    Such a request costs nothing and is not counted. Outside of an attempt, or if the attempt has sent others, or may
    have without the engine knowing, this does nothing.
    """
    scope = _root(_scope.get())
    if scope is not None and scope.requests == 1 and _is_first_to_send(scope.backend, layer):
        scope.requests = 0


def _is_first_to_send(backend: object, layer: object) -> bool:
    """Return whether a request to the backend reaches this layer through other layers only."""
    while backend is not layer:
        inner: tuple[object, ...] = getattr(backend, "inner", ())
        if len(inner) != 1:
            return False
        (backend,) = inner
    return True


def _root(scope: Scope | None) -> Scope | None:
    """Return the attempt or judge that a layer's part belongs to."""
    while scope is not None and scope.outer is not None:
        scope = scope.outer
    return scope


def report_cache_hit() -> None:
    """
    Report that the answer of the running attempt comes from a cache.

    For layers: its latency says nothing about the model. Outside of an attempt this does nothing.
    """
    scope = _scope.get()
    while scope is not None:
        scope.from_cache = True
        scope = scope.outer


def reservations_around() -> tuple[Reservation, ...]:
    """Return the reservations of the attempts around this code."""
    scope = _root(_scope.get())
    return () if scope is None else (*scope.holding, *scope.further)


def enter_item(item_id: str, parent_id: str | None) -> Scope:
    """Start an item in a context of its own, which need not be restored."""
    scope = Scope(item_id, parent_id)
    scope.is_item = True
    # The run may be inside of an attempt, which returns its reservation only after the run.
    scope.holding = reservations_around()
    _scope.set(scope)
    _logged_item.set(item_id)
    return scope


def current_item() -> Scope | None:
    """Return the item that a call which starts here is made for, if it is not nested in another call."""
    scope = _scope.get()
    return scope if scope is not None and scope.is_item else None


def limit_other_backends(limit_backend: Callable[[BackendLike], BackendLike]) -> None:
    """Wrap the backends of tiers and judges in the limits of the run, for the item that this code runs in."""
    item = current_item()
    if item is not None:
        item.limit_backend = limit_backend


def with_limits_of(item: Scope | None, backend: BackendLike) -> BackendLike:
    """Return a backend of a tier or a judge with the limits of the item's run."""
    return backend if item is None or item.limit_backend is None else item.limit_backend(backend)


def enter_call(scope: Scope) -> CallTokens:
    """Start a call: from now on, its id is current and in the log lines of this context."""
    nested = None if scope.parent_id is None else _nest()
    return _scope.set(scope), _logged_call.set(scope.sampling_id), _logged_iteration.get(), nested


def _nest() -> Token[int]:
    """Count a call inside of another one, or raise if there are too many."""
    depth = _nesting.get() + 1
    if depth > _MAX_NESTING:
        raise NestedTooDeeply(f"{depth} calls of sample() are nested in each other")
    return _nesting.set(depth)


def enter_attempt(scope: Scope, iteration_id: str) -> None:
    """Start an attempt. It need not be left: the next attempt or `leave_attempts` replaces it."""
    _scope.set(scope)
    _logged_iteration.set(iteration_id)


def leave_attempts(scope: Scope, entered: CallTokens) -> None:
    """Restore the context variables of the call."""
    _scope.set(scope)
    _logged_iteration.set(entered[2])


def leave_call(entered: CallTokens) -> None:
    """Restore the context variables from before the call, once its attempts have been left."""
    scope, logged_call, _, nested = entered
    _logged_call.reset(logged_call)
    _scope.reset(scope)
    if nested is not None:
        _nesting.reset(nested)


def part_of_current() -> Scope | None:
    """Return a scope with the current ids and an account of its own, or None outside of any call."""
    scope = _scope.get()
    if scope is None:
        return None
    part = Scope(scope.sampling_id, scope.parent_id, scope.request)
    part.outer = scope
    return part


def enter_part(part: Scope) -> Token[Scope | None]:
    """Start a part of an attempt. `leave_part` ends it."""
    return _scope.set(part)


def leave_part(entered: Token[Scope | None]) -> None:
    """Restore the scope from before a part of an attempt."""
    _scope.reset(entered)


def parent_id() -> str | None:
    """Return the id that a call which starts here has as its parent."""
    scope = _scope.get()
    if scope is None:
        return None
    return scope.sampling_id if scope.request is None else scope.request.iteration_id


def new_sampling_id() -> str:
    """Make an id that sorts by time (nanoseconds) and is unique everywhere (64 random bits)."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def iteration_id(sampling_id: str, iteration: int) -> str:
    """Make the id of one attempt. Seven digits, so that ids sort within a call, too."""
    return f"{sampling_id}-{iteration:07d}"
