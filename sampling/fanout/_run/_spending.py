"""Compute the amount that one item spent."""

from typing import Any

from sampling._engine.scope import Scope
from sampling.fanout.journal._store import Spent
from sampling.results import SamplingResult
from sampling.usage import Usage

__all__ = ["reported_usage", "spent_by", "stopped_by_budget"]


def spent_by(result: SamplingResult[Any] | None, scope: Scope) -> Spent:
    """
    Return the amount that an item spent.

    It is taken from the result, else from the counts of its scope.
    """
    if result is None:
        return Spent(reported_usage(scope), scope.requests, scope.requests)
    return Spent(result.usage, len(result.attempts), sum([attempt.requests for attempt in result.attempts]))


def reported_usage(scope: Scope) -> Usage:
    """
    Return the usage of an item without a result.

    The request that failed is in it as far as the backend reported its usage.
    """
    return scope.spent if scope.reported is None else scope.spent + scope.reported


def stopped_by_budget(result: SamplingResult[Any]) -> bool:
    """
    Return whether the budget ended the call.

    Such an item is not recorded, so a resume samples it again.
    """
    return not result.success and result.stop_reason in {"budget", "deadline"}
