"""Compute the amount that one item spent."""

from typing import Any

import anyio

from sampling._engine.scope import Scope, enter_item
from sampling.fanout.journal._store import Spent
from sampling.results import SamplingResult
from sampling.usage import Usage

__all__ = ["ItemAccount"]


class ItemAccount:
    """The amount that the calls of one item spent. There are several if the backend had an outage."""

    def __init__(self, item_id: str, parent_id: str | None) -> None:
        self._ids = item_id, parent_id
        self._scope = enter_item(*self._ids)
        self._earlier: Spent | None = None
        self._began_at = anyio.current_time()

    @property
    def elapsed_s(self) -> float:
        """The seconds since the item was started, including the time that it waited for the backend."""
        return anyio.current_time() - self._began_at

    @property
    def left_to_resume(self) -> bool:
        """True if the next call, of this process or a resume, gets the same answers again, and counts them."""
        return self._scope.left_to_resume

    def start_another_call(self, result: SamplingResult[Any] | None) -> None:
        """Keep the amount of the call that has ended, with this result if it had one."""
        if not self.left_to_resume:
            self._earlier = self.spent(result)
        # The next call has the same name, so that a server which knows its requests does not bill them twice.
        self._scope = enter_item(*self._ids)

    def spent(self, result: SamplingResult[Any] | None) -> Spent:
        """Return the amount of all calls. It is taken from the result, else from the counts of the scope."""
        if result is None:
            last = Spent(
                _reported_usage(self._scope), self._scope.attempts, self._scope.requests, self._scope.estimated_tokens
            )
        else:
            requests = sum([attempt.requests for attempt in result.attempts])
            last = Spent(result.usage, len(result.attempts), requests, self._scope.estimated_tokens)
        return last if self._earlier is None else self._earlier.plus(last)


def _reported_usage(scope: Scope) -> Usage:
    """
    Return the usage of a call without a result.

    The request that failed is in it as far as the backend reported its usage.
    """
    return scope.spent if scope.reported is None else scope.spent + scope.reported
