"""`fan_out` and `open_fan_out`: one strategy over many items."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from sampling.budgets import Budget
from sampling.fanout._arguments import MAX_BUFFERED, Items, OnError, OnFailure, plan_of
from sampling.fanout._run import FanOut
from sampling.fanout.engines import FanOutEngine
from sampling.fanout.items import FanOutResult
from sampling.fanout.journal import Journal
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import RequirementLike
from sampling.strategy import BaseSamplingStrategy

__all__ = ["fan_out", "open_fan_out"]


async def fan_out(  # noqa: PLR0913 - each of them is one thing to decide
    strategy: BaseSamplingStrategy,
    items: Items,
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None = None,
    *,
    max_concurrency: int | float | str | None = 8,  # noqa: PYI041 - a whole float is honoured, and said to be
    on_failure: OnFailure = "continue",
    on_error: OnError = "raise",
    journal: Journal | str | PathLike[str] | None = None,
    options: Options | None = None,
    budget: Budget | None = None,
    hooks: Hooks | None = None,
    engine: FanOutEngine | None = None,
) -> FanOutResult[Any]:
    """
    Sample every item, some at a time, and return all outcomes in the order of the items.

    Args:
        strategy: How to sample each of them.

        items: What to ask: an iterable, or an async one, of actions or texts, or of pairs `(key, action)`.
            It is read as there is room, no further ahead than `max_concurrency`.

        ctx: The conversation to ask each of them in; None for new ones.

        backend: Who answers.

        reqs: What must be true of every answer, after the strategy's own requirements.

        max_concurrency: How many items may be in flight at once; 1 or less runs one after another.

        on_failure: What to do after an item without a valid answer: "continue", or "halt" the run with it.

        on_error: What to do after an item whose call raised: "raise" it, "halt" the run with it, or "continue".

        journal: Where to write the run down, so that it can go on after a crash: a path, or a `Journal`.

        options: How to generate.

        budget: What may be spent by all items together.

        hooks: Called on events of the run, and of each of its calls.

        engine: Where the calls run; None for this process.

    Returns:
        The outcomes of all items, or, if the run was halted, of those up to the item that halted it.

    Raises:
        What an item's call raised, with its own type, if `on_error` is "raise": the one of the lowest index.
        `JournalError` if the journal can't be used or written.
    """
    plan = plan_of(
        strategy,
        items,
        ctx,
        backend,
        reqs,
        max_concurrency=max_concurrency,
        on_failure=on_failure,
        on_error=on_error,
        journal=journal,
        options=options,
        budget=budget,
        hooks=hooks,
        engine=engine,
        ordered=True,
        max_buffered=0,
    )
    async with FanOut[Any](plan, bounded=False) as run:
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
    ordered: bool = True,
    max_buffered: int = MAX_BUFFERED,
) -> FanOut[Any]:
    """
    Do as `fan_out` does, and hand the outcomes out as they come, without holding them all.

        async with open_fan_out(strategy, items, None, backend) as outcomes:
            async for outcome in outcomes:
                ...

    Args:
        ordered: Whether the outcomes come in the order of the items, or as they finish.

        max_buffered: How many outcomes may wait, for their turn or for the reader, before no new items are started.
            So a slow first item holds nothing up until that many others have finished.

    The other arguments are those of `fan_out`. What an item raised is raised by the iteration,
    after the outcomes of all items before it.
    """
    plan = plan_of(
        strategy,
        items,
        ctx,
        backend,
        reqs,
        max_concurrency=max_concurrency,
        on_failure=on_failure,
        on_error=on_error,
        journal=journal,
        options=options,
        budget=budget,
        hooks=hooks,
        engine=engine,
        ordered=ordered,
        max_buffered=max_buffered,
    )
    return FanOut(plan)
