"""`fan_out` and `open_fan_out`, which apply one strategy to many items."""

import sys
from collections.abc import Collection, Iterable
from os import PathLike
from typing import Any

from sampling.budgets import Budget
from sampling.fanout._arguments import MAX_BUFFERED, Items, OnError, OnFailure, check_arguments, checked_concurrency
from sampling.fanout._run import FanOut
from sampling.fanout.engines import FanOutEngine
from sampling.fanout.items import FanOutResult, ItemStatus
from sampling.fanout.journal import Journal
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import RequirementLike
from sampling.strategy import BaseSamplingStrategy

__all__ = ["fan_out", "open_fan_out"]


async def fan_out(  # noqa: PLR0913 - each is an independent setting
    strategy: BaseSamplingStrategy,
    items: Items,
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None = None,
    *,
    max_concurrency: int | float | str | None = 8,  # noqa: PYI041 - a whole float is accepted, and documented
    on_failure: OnFailure = "continue",
    on_error: OnError = "raise",
    journal: Journal | str | PathLike[str] | None = None,
    options: Options | None = None,
    budget: Budget | None = None,
    hooks: Hooks | None = None,
    engine: FanOutEngine | None = None,
    max_requests: int | None = None,
    item_timeout_s: float | None = None,
    outage_grace_s: float = 600.0,
    retry: Collection[ItemStatus] = (),
) -> FanOutResult[Any]:
    """
    Sample every item, and return all outcomes in order.

    Args:
        strategy: The strategy for each item.

        items: An iterable or async iterable of actions, texts, or pairs `(key, action)`, or a mapping of keys to
            actions. An item is read only when there is a free slot for it. A generator is closed at the end.

        ctx: The conversation that each item continues. None starts a new one.

        backend: The backend that answers.

        reqs: Requirements on every answer, checked after the strategy's own.

        max_concurrency: The number of items in flight at once. 1 or less runs them sequentially, and so does, with a
            warning, a value that is not a whole number.

        on_failure: "continue" after an item without a valid answer, or "halt" the run there.

        on_error: "raise" the error of an item, "halt" the run there, or "continue".

        journal: A path or a `Journal` that records the run, so that it can resume after a crash.

        options: Generation options.

        budget: A budget that all items share. When it has no room for an item, the run starts no more and is
            "halted", with `stop_reason` "budget" or "deadline". With a journal, the remaining items stay open.

        hooks: Hooks on events of the run and of each of its calls.

        engine: The engine that runs the calls. None runs them in this process.

        max_requests: The number of requests in flight at once, over all items and subsamples. Those to the
            backends of tiers and judges count as well.

        item_timeout_s: The time limit of one item. An item that reaches it is errored with a `Timeout`.

        outage_grace_s: The time to wait for a backend that answered before and now fails every call with a transient
            error. The failed items are put on hold, and one at a time is tried again, at growing intervals.
            0 counts every error at once.

        retry: The items of the journal to sample again: "failed", "errored" or both. Their earlier outcomes are
            replaced once they have new ones, and stay in the file.

    Returns:
        The outcomes of all items, or of those up to the item that halted the run.

    Raises:
        JournalError: If the journal can't be used or written.

    If `on_error` is "raise", the error of the failed item with the lowest index is raised, with its own type.
    """
    run = open_fan_out(
        strategy,
        items,
        ctx,
        backend,
        reqs,
        # Checked here already, so that a warning about it points to the caller.
        max_concurrency=checked_concurrency(max_concurrency),
        on_failure=on_failure,
        on_error=on_error,
        journal=journal,
        options=options,
        budget=budget,
        hooks=hooks,
        engine=engine,
        max_requests=max_requests,
        item_timeout_s=item_timeout_s,
        outage_grace_s=outage_grace_s,
        retry=retry,
        # All outcomes are returned at the end, so none of them ever makes room for another.
        max_buffered=sys.maxsize,
    )
    async with run:
        outcomes = await run.collect()
    return run.result(outcomes)


def open_fan_out(  # noqa: PLR0913
    strategy: BaseSamplingStrategy,
    items: Items,
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None = None,
    *,
    max_concurrency: int | float | str | None = 8,  # noqa: PYI041
    on_failure: OnFailure = "continue",
    on_error: OnError = "raise",
    journal: Journal | str | PathLike[str] | None = None,
    options: Options | None = None,
    budget: Budget | None = None,
    hooks: Hooks | None = None,
    engine: FanOutEngine | None = None,
    max_requests: int | None = None,
    item_timeout_s: float | None = None,
    outage_grace_s: float = 600.0,
    retry: Collection[ItemStatus] = (),
    ordered: bool = True,
    max_buffered: int = MAX_BUFFERED,
) -> FanOut[Any]:
    """
    Sample every item, and stream the outcomes.

    The run does not hold all of them in memory:

        async with open_fan_out(strategy, items, None, backend) as outcomes:
            async for outcome in outcomes:
                ...

    Args:
        ordered: Whether outcomes come in the order of the items or as they finish.

        max_buffered: The number of outcomes that may wait, for their turn or for the reader, before the run stops
            starting items. A slow first item holds up nothing until that many others have finished.

    The other arguments are those of `fan_out`. The iteration raises the error of an item after the outcomes
    of all earlier items.
    """
    arguments = check_arguments(
        strategy,
        items,
        ctx,
        backend,
        reqs,
        max_concurrency=checked_concurrency(max_concurrency),
        on_failure=on_failure,
        on_error=on_error,
        journal=journal,
        options=options,
        budget=budget,
        hooks=hooks,
        engine=engine,
        max_requests=max_requests,
        item_timeout_s=item_timeout_s,
        outage_grace_s=outage_grace_s,
        retry=retry,
        ordered=ordered,
        max_buffered=max_buffered,
    )
    return FanOut(arguments)
