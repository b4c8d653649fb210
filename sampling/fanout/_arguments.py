"""Check the arguments of a fan-out before anything is spent."""

import math
import warnings
from collections.abc import AsyncIterable, Collection, Iterable, Mapping
from numbers import Real
from operator import index
from os import PathLike, fspath
from typing import Any, Literal, SupportsIndex, TypeAlias, cast, get_args

import attrs

from sampling._arguments import check_bool, check_instance, check_int, check_number, short_repr, wrong_type
from sampling.budgets import Budget
from sampling.fanout.engines import FanOutEngine, LocalEngine
from sampling.fanout.items import FanOutEvent, ItemStatus
from sampling.fanout.journal import Journal
from sampling.hooks import Hook, Hooks
from sampling.messages import Action, Context, Options
from sampling.protocols import BackendLike, generate_of
from sampling.requirements import Requirement, RequirementLike, as_requirements
from sampling.strategy import BaseSamplingStrategy

__all__ = [
    "FanOutArguments",
    "Items",
    "OnError",
    "OnFailure",
    "check_arguments",
    "checked_concurrency",
    "handles_run_events",
]

OnFailure: TypeAlias = Literal["continue", "halt"]
"""The action after an item without a valid answer."""

OnError: TypeAlias = Literal["raise", "halt", "continue"]
"""The action after an item whose call raised."""

Items: TypeAlias = (
    Iterable[Action[Any] | str | tuple[str | int, Action[Any] | str]]
    | AsyncIterable[Action[Any] | str | tuple[str | int, Action[Any] | str]]
    | Mapping[str, Action[Any] | str]
    | Mapping[int, Action[Any] | str]
)
"""Actions, texts, or pairs of a key and one of these, from an iterable, an async iterable, or a mapping by key."""

MAX_BUFFERED = 1_000


@attrs.frozen(kw_only=True)
class FanOutArguments:
    """The checked arguments of `fan_out` or `open_fan_out`."""

    strategy: BaseSamplingStrategy
    items: Items
    context: Context | None
    backend: BackendLike
    requirements: tuple[Requirement, ...]
    max_concurrency: int
    on_failure: OnFailure
    on_error: OnError
    journal: Journal | None
    options: Options | None
    budget: Budget | None
    run_hooks: Hooks
    """Hooks on events of the run."""

    call_hooks: Hooks | None
    """Hooks on events of the calls. None if there are none, because a call without hooks is faster."""

    engine: FanOutEngine
    max_requests: int | None
    item_timeout_s: float | None
    outage_grace_s: float
    retry: frozenset[ItemStatus]
    ordered: bool
    max_buffered: int

    @property
    def total(self) -> int | None:
        """The number of items, or None if they have no length."""
        try:
            return len(self.items)  # type: ignore[arg-type]
        except TypeError:
            return None


def check_arguments(  # noqa: PLR0913 - they are the arguments of fan_out
    strategy: BaseSamplingStrategy,
    items: Items,
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None,
    *,
    max_concurrency: int,
    on_failure: OnFailure,
    on_error: OnError,
    journal: "Journal | str | PathLike[str] | None",
    options: Options | None,
    budget: Budget | None,
    hooks: Hooks | None,
    engine: FanOutEngine | None,
    max_requests: int | None,
    item_timeout_s: float | None,
    outage_grace_s: float,
    retry: Collection[ItemStatus],
    ordered: bool,
    max_buffered: int,
) -> FanOutArguments:
    """Check and normalize all arguments, without reading an item."""
    check_instance("strategy", strategy, BaseSamplingStrategy, "a strategy")
    _check_items_argument(items)
    generate_of(backend)
    _check_optional("ctx", ctx, Context, "a Context or None")
    _check_optional("options", options, Options, "Options or None")
    _check_optional("budget", budget, Budget, "a Budget or None")
    _check_optional("hooks", hooks, Hooks, "Hooks or None")
    _check_choice("on_failure", on_failure, get_args(OnFailure))
    _check_choice("on_error", on_error, get_args(OnError))
    if engine is not None:
        _check_engine(engine)
    window: int | None = getattr(engine, "window", None)
    run_hooks, call_hooks = _split_hooks(hooks)
    return FanOutArguments(
        strategy=strategy,
        items=items,
        context=ctx,
        backend=backend,
        requirements=as_requirements("reqs", reqs),
        max_concurrency=max_concurrency if window is None else window,
        on_failure=on_failure,
        on_error=on_error,
        journal=_journal(journal),
        options=options,
        budget=budget,
        run_hooks=run_hooks,
        call_hooks=call_hooks,
        engine=LocalEngine() if engine is None else engine,
        max_requests=None if max_requests is None else check_int("max_requests", max_requests, least=1),
        item_timeout_s=None if item_timeout_s is None else check_number("item_timeout_s", item_timeout_s, above=0),
        outage_grace_s=check_number("outage_grace_s", outage_grace_s, least=0),
        retry=_checked_retry(retry, has_journal=journal is not None),
        ordered=check_bool("ordered", ordered),
        max_buffered=max(check_int("max_buffered", max_buffered, least=0), window or 0),
    )


def _check_optional(name: str, value: object, kind: type[Any], allowed: str) -> None:
    if value is not None:
        check_instance(name, value, kind, allowed)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {short_repr(value)}")


def _check_items_argument(items: object) -> None:
    kind = type(items)
    lone = issubclass(kind, str | bytes | Action)
    if hasattr(kind, "itertuples"):
        columns = 'table["prompt"], or table[["key", "prompt"]].itertuples(index=False)'
        raise TypeError(f"items is a table, which iterates over the names of its columns: pass {columns}")
    if lone or not issubclass(kind, Iterable | AsyncIterable):
        allowed = "an iterable or async iterable of actions, texts, or pairs (key, action)"
        raise wrong_type("items", items, f"{allowed}: put a single one in brackets" if lone else allowed)


def _check_engine(engine: object) -> None:
    if isinstance(engine, type):
        raise TypeError(f"engine must be an instance, got the class {engine.__name__}: call it first")
    check_instance("engine", engine, FanOutEngine, "a FanOutEngine, with `open(work)`, or None for this process")


def _journal(journal: object) -> Journal | None:
    if journal is None or isinstance(journal, Journal):
        return journal
    if isinstance(journal, str | PathLike):
        return Journal(fspath(journal))  # pyright: ignore[reportUnknownArgumentType]
    raise wrong_type("journal", journal, "a path, a Journal, or None")


def _checked_retry(retry: object, *, has_journal: bool) -> frozenset[ItemStatus]:
    allowed = "a collection of 'failed' and 'errored'"
    if isinstance(retry, str) or not isinstance(retry, Collection):
        raise wrong_type("retry", retry, allowed)
    statuses = frozenset(cast("Collection[ItemStatus]", retry))
    if not statuses <= {"failed", "errored"}:
        raise ValueError(f"retry must be {allowed}, got {short_repr(set(statuses))}")
    if statuses and not has_journal:
        raise ValueError("retry needs a journal with the outcomes to replace")
    return statuses


def _split_hooks(hooks: Hooks | None) -> tuple[Hooks, Hooks | None]:
    """
    Split hooks into those of the run and those of its calls.

    A hook on `Event` is in both, because it receives the events of both.
    """
    run_hooks, call_hooks = Hooks(), Hooks()
    for hook in hooks or ():
        if handles_run_events(hook):
            run_hooks.add(hook)
        if not issubclass(hook.event, FanOutEvent):
            call_hooks.add(hook)
    return run_hooks, call_hooks if len(call_hooks) else None


def handles_run_events(hook: Hook) -> bool:
    """Return whether a hook receives events of a run."""
    return issubclass(hook.event, FanOutEvent) or issubclass(FanOutEvent, hook.event)


# Concurrency.


def checked_concurrency(given: object) -> int:
    """
    Return the number of items that may run at once.

    An argument that is not a whole number gives 1 and a warning, which points to the caller of the calling function.
    """
    number = _as_whole_number(given)
    if number is None:
        warnings.warn(
            f"max_concurrency must be a whole number, got {short_repr(given)}: the items run one after another",
            stacklevel=3,
        )
        return 1
    return max(number, 1)


def _as_whole_number(given: object) -> int | None:
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return index(given)
    # Not float: NumPy's are not all subclasses of it.
    if isinstance(given, str | Real) and not isinstance(given, bool):
        try:
            number = float(given)
        except (ValueError, OverflowError):
            return None
        return int(number) if math.isfinite(number) and number.is_integer() else None
    if given is None or isinstance(given, bool):
        return None
    raise wrong_type("max_concurrency", given, "a whole number")
