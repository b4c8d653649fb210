"""
Budgets for items on workers.

All of them together stay within the budget of the driver.
"""

import anyio
import attrs
from anyio.lowlevel import current_token

from sampling.budgets import Budget, Reservation
from sampling.errors import BudgetExceeded
from sampling.fanout.engines import Work
from sampling.fanout.items import Item
from sampling.fanout.ray._wire import Allowance, WorkerReply
from sampling.strategies.worst_case import WorstCases
from sampling.usage import NO_USAGE

__all__ = ["Allowances", "Grant"]


@attrs.frozen
class Grant:
    """The part of the budget that one item reserves."""

    worst_case: Reservation
    """The most that the item can spend."""

    held: Reservation
    """The worst case plus a share of the rest, or everything that was left."""

    allowance: Allowance | None


_NOTHING = Reservation(0, 0, 0, 0.0)
_NO_LIMIT = Grant(_NOTHING, _NOTHING, None)
"""The grant of a run without a budget."""


class Allowances:
    """
    Reserves a part of the budget for each item.

    The unused rest is returned when the item has ended.
    The budget stays with the driver, and a worker can't request more. So an item is sent only when there is room for
    its worst case: every attempt with its judges, each with the longest prompt and answer.
    It also gets a share of the unreserved rest, one part in `max_concurrency`, because the estimate may be too low.
    Both are reserved until the item returns, so all items together never exceed the budget.
    Without enough room, an item waits for others to return. If no other is out, it gets all of the rest.
    """

    def __init__(self, work: Work) -> None:
        self._budget = work.budget
        self._shares = work.max_concurrency
        self._worst = WorstCases(work.strategy, work.requirements, work.context, work.options)
        self._out = 0
        self._changed = anyio.Event()
        self._longest_answer = 0
        self._dearest_request = 0.0

    async def grant(self, item: Item[object]) -> Grant:
        """Wait for room in the budget, and reserve it."""
        budget = self._budget
        if budget is None:
            return _NO_LIMIT
        while (held := self._hold(budget, worst_case := self._worst_case(item))) is None:
            await self._changed.wait()
        self._out += 1
        return Grant(_within(worst_case, budget, held), held, _allowance(budget, held))

    def _hold(self, budget: Budget, worst_case: Reservation) -> Reservation | None:
        """Reserve the worst case and a share of the rest. Return None if other items must return first."""
        try:
            budget.hold(worst_case)
        except BudgetExceeded:
            if self._out:
                return None
            rest = _rest(budget, 1)
            budget.hold(rest)
            return rest
        share = _rest(budget, self._shares)
        budget.hold(share)
        return _sum(worst_case, share)

    def settle(self, grant: Grant, reply: WorkerReply | None) -> None:
        """Release a grant, and charge the amount spent. Without a reply, charge the worst case."""
        if self._budget is None:
            return
        self._out -= 1
        if reply is None:
            self._budget.settle_held(grant.held, grant.worst_case, NO_USAGE)
        else:
            self._learn(reply)
            spent = Reservation(reply.attempts, reply.requests, reply.tokens, reply.usage.cost)
            self._budget.settle_held(grant.held, spent, reply.usage)
        self._changed.set()
        self._changed = anyio.Event()

    def _learn(self, reply: WorkerReply) -> None:
        if reply.requests:
            self._longest_answer = max(self._longest_answer, reply.usage.output_tokens // reply.requests)
            self._dearest_request = max(self._dearest_request, reply.usage.cost / reply.requests)

    def _worst_case(self, item: Item[object]) -> Reservation:
        worst = self._worst.of(item.action.text, longest_answer=self._longest_answer)
        return Reservation(worst.attempts, worst.requests, worst.tokens, worst.requests * self._dearest_request)


def _rest(budget: Budget, parts: int) -> Reservation:
    """Return one of `parts` equal parts of the unreserved rest."""
    charged, reserved = budget.charged, budget.reserved
    return Reservation(
        int(_left(budget.attempts, charged.attempts + reserved.attempts)) // parts,
        int(_left(budget.requests, charged.requests + reserved.requests)) // parts,
        int(_left(budget.tokens, charged.tokens + reserved.tokens)) // parts,
        # Slightly less, to stay below the limit despite rounding errors.
        _left(budget.cost, charged.cost + reserved.cost) / parts * (1 - 1e-9),
    )


def _left(limit: float | None, taken: float) -> float:
    return 0 if limit is None else max(0, limit - taken)


def _within(worst_case: Reservation, budget: Budget, held: Reservation) -> Reservation:
    """Return the part of the worst case that the allowance of an item lets it spend."""
    return Reservation(
        worst_case.attempts if budget.attempts is None else min(worst_case.attempts, held.attempts),
        worst_case.requests if budget.requests is None else min(worst_case.requests, held.requests),
        worst_case.tokens if budget.tokens is None else min(worst_case.tokens, held.tokens),
        worst_case.cost if budget.cost is None else min(worst_case.cost, held.cost),
    )


def _sum(one: Reservation, other: Reservation) -> Reservation:
    return Reservation(
        one.attempts + other.attempts, one.requests + other.requests, one.tokens + other.tokens, one.cost + other.cost
    )


def _allowance(budget: Budget, held: Reservation) -> Allowance:
    """Return the limits for an item. Amounts that the budget does not limit are None."""
    now = anyio.current_time()
    return Allowance(
        attempts=None if budget.attempts is None else held.attempts,
        requests=None if budget.requests is None else held.requests,
        tokens=None if budget.tokens is None else held.tokens,
        cost=None if budget.cost is None else held.cost,
        # A deadline of 0 is invalid. With a tiny one, the call ends at once, as it would in this process.
        deadline_s=None if budget.deadline_s is None else max(1e-6, budget.deadline(current_token(), now) - now),
    )
