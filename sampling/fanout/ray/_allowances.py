"""What an item may spend on a worker, so that all of them together stay within the driver's budget."""

import anyio
import attrs
from anyio.lowlevel import current_token

from sampling.budgets import Budget, Reservation
from sampling.errors import BudgetExceeded
from sampling.fanout.engines import Work
from sampling.fanout.items import Item
from sampling.fanout.ray._wire import Allowance, Reply
from sampling.strategies.worst_case import WorstCases
from sampling.usage import NO_USAGE

__all__ = ["Allowances", "Grant"]


@attrs.frozen
class Grant:
    """What is held of the driver's budget for one item, and what the item is told of it."""

    worst_case: Reservation
    held: Reservation
    """The worst case and a share besides, or all that was left."""

    allowance: Allowance | None


_NOTHING = Reservation(0, 0, 0, 0.0)
_NO_LIMIT = Grant(_NOTHING, _NOTHING, None)
"""For runs without a budget."""


class Allowances:
    """
    Gives every item its part of the budget before it goes out, and takes back what it did not use.

    The budget stays here, and a worker can't ask for more. So an item goes out when there is room for all that it may
    do: every attempt with its judges, each at the length of its question and of its longest answer.
    Besides, it gets a share of what nobody holds, one part in `max_concurrency`, for what no estimate can know.
    All of that is held until the item is back, so all items together never have more than there is.
    Where there is no such room, an item waits for others to come back; if it is the only one, it gets all the rest.
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
        """Wait until there is room for an item, and hold it."""
        budget = self._budget
        if budget is None:
            return _NO_LIMIT
        while (held := self._hold(budget, worst_case := self._worst_case(item))) is None:
            await self._changed.wait()
        self._out += 1
        return Grant(worst_case, held, _allowance(budget, held))

    def _hold(self, budget: Budget, worst_case: Reservation) -> Reservation | None:
        """Hold what an item needs, and more if there is more; None if others have to come back first."""
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

    def settle(self, grant: Grant, reply: Reply | None) -> None:
        """Take a grant back, less what the item spent; where nobody can say what that is, the worst is assumed."""
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

    def _learn(self, reply: Reply) -> None:
        if reply.requests:
            self._longest_answer = max(self._longest_answer, reply.usage.output_tokens // reply.requests)
            self._dearest_request = max(self._dearest_request, reply.usage.cost / reply.requests)

    def _worst_case(self, item: Item[object]) -> Reservation:
        worst = self._worst.of(item.action.text, longest_answer=self._longest_answer)
        return Reservation(worst.attempts, worst.requests, worst.tokens, worst.requests * self._dearest_request)


def _rest(budget: Budget, parts: int) -> Reservation:
    """Return one part of what nobody has spent or holds."""
    charged, reserved = budget.charged, budget.reserved
    return Reservation(
        int(_left(budget.attempts, charged.attempts + reserved.attempts)) // parts,
        int(_left(budget.requests, charged.requests + reserved.requests)) // parts,
        int(_left(budget.tokens, charged.tokens + reserved.tokens)) // parts,
        # A little less, for sums of fractions are off in their last digit.
        _left(budget.cost, charged.cost + reserved.cost) / parts * (1 - 1e-9),
    )


def _left(limit: float | None, taken: float) -> float:
    return 0 if limit is None else max(0, limit - taken)


def _sum(one: Reservation, other: Reservation) -> Reservation:
    return Reservation(
        one.attempts + other.attempts, one.requests + other.requests, one.tokens + other.tokens, one.cost + other.cost
    )


def _allowance(budget: Budget, held: Reservation) -> Allowance:
    """Tell an item what it may spend, of what there is a limit on."""
    now = anyio.current_time()
    return Allowance(
        attempts=None if budget.attempts is None else held.attempts,
        requests=None if budget.requests is None else held.requests,
        tokens=None if budget.tokens is None else held.tokens,
        cost=None if budget.cost is None else held.cost,
        # An allowance without any time at all would be none; with next to none, the call ends at once, as it does here.
        deadline_s=None if budget.deadline_s is None else max(1e-6, budget.deadline(current_token(), now) - now),
    )
