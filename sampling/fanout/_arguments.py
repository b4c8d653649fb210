"""What a fan-out is told: checked where it is passed in, before anything is spent."""

import math
import warnings
from collections.abc import AsyncIterable, Iterable
from os import PathLike, fspath
from typing import Any, Literal, TypeAlias, get_args

import attrs

from sampling._arguments import check_bool, check_instance, check_int, shown, wrong_type
from sampling.budgets import Budget
from sampling.fanout.engines import FanOutEngine, LocalEngine
from sampling.fanout.items import FanOutEvent
from sampling.fanout.journal import Journal
from sampling.hooks import Hook, Hooks
from sampling.messages import Action, Context, Options
from sampling.protocols import BackendLike, generate_of
from sampling.requirements import Requirement, RequirementLike, as_requirements
from sampling.strategy import BaseSamplingStrategy

__all__ = ["Items", "OnError", "OnFailure", "Plan", "plan_of", "wants_the_run"]

OnFailure: TypeAlias = Literal["continue", "halt"]
"""What to do after an item without a valid answer."""

OnError: TypeAlias = Literal["raise", "halt", "continue"]
"""What to do after an item whose call raised."""

Items: TypeAlias = (
    Iterable[Action[Any] | str | tuple[str | int, Action[Any] | str]]
    | AsyncIterable[Action[Any] | str | tuple[str | int, Action[Any] | str]]
)
"""What to ask: actions, texts, or pairs of a key and one of these; all at once, or as they come."""

MAX_BUFFERED = 1_000


@attrs.frozen(kw_only=True)
class Plan:
    """What a run was told, checked."""

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
    """Those that want events of the run."""

    call_hooks: Hooks | None
    """Those that want events of the calls; None if there are none, for a call without hooks is a fast one."""

    engine: FanOutEngine
    ordered: bool
    max_buffered: int

    @property
    def total(self) -> int | None:
        """How many items there are, if that can be known without reading them."""
        try:
            return len(self.items)  # type: ignore[arg-type]
        except TypeError:
            return None


def plan_of(  # noqa: PLR0913 - they are the arguments of fan_out
    strategy: BaseSamplingStrategy,
    items: Items,
    ctx: Context | None,
    backend: BackendLike,
    reqs: Iterable[RequirementLike] | None,
    *,
    max_concurrency: object,
    on_failure: OnFailure,
    on_error: OnError,
    journal: "Journal | str | PathLike[str] | None",
    options: Options | None,
    budget: Budget | None,
    hooks: Hooks | None,
    engine: FanOutEngine | None,
    ordered: bool,
    max_buffered: int,
) -> Plan:
    """Check everything that can be checked without reading an item."""
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
    run_hooks, call_hooks = _sorted_hooks(hooks)
    return Plan(
        strategy=strategy,
        items=items,
        context=ctx,
        backend=backend,
        requirements=as_requirements("reqs", reqs),
        max_concurrency=_concurrency(max_concurrency),
        on_failure=on_failure,
        on_error=on_error,
        journal=_journal(journal),
        options=options,
        budget=budget,
        run_hooks=run_hooks,
        call_hooks=call_hooks,
        engine=LocalEngine() if engine is None else engine,
        ordered=check_bool("ordered", ordered),
        max_buffered=check_int("max_buffered", max_buffered, least=0),
    )


def _check_optional(name: str, value: object, kind: type[Any], allowed: str) -> None:
    if value is not None:
        check_instance(name, value, kind, allowed)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")


def _check_items_argument(items: object) -> None:
    kind = type(items)
    lone = issubclass(kind, str | bytes | Action)
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


def _sorted_hooks(hooks: Hooks | None) -> tuple[Hooks, Hooks | None]:
    """Sort hooks by who calls them: the run, or each of its calls. One on `Event` gets both kinds."""
    run_hooks, call_hooks = Hooks(), Hooks()
    for hook in hooks or ():
        if wants_the_run(hook):
            _register(hook, run_hooks)
        if not issubclass(hook.event, FanOutEvent):
            _register(hook, call_hooks)
    return run_hooks, call_hooks if len(call_hooks) else None


def wants_the_run(hook: Hook) -> bool:
    """Tell whether a hook is for events of a run: for some of them, or for all events there are."""
    return issubclass(hook.event, FanOutEvent) or issubclass(FanOutEvent, hook.event)


def _register(hook: Hook, hooks: Hooks) -> None:
    hooks.on(hook.event, critical=hook.critical, timeout_s=hook.timeout_s)(hook.function)


# How many at once.


def _concurrency(given: object) -> int:
    """Return how many items may run at once: what is no number runs one after another, and a warning says so."""
    number = _as_whole_number(given)
    if number is None:
        warnings.warn(
            f"max_concurrency must be a whole number, got {shown(given)}: the items run one after another",
            stacklevel=4,
        )
        return 1
    return max(number, 1)


def _as_whole_number(given: object) -> int | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str | float) and not isinstance(given, bool):
        try:
            number = float(given)
        except ValueError:
            return None
        return int(number) if math.isfinite(number) and number.is_integer() else None
    if given is None or isinstance(given, bool):
        return None
    raise wrong_type("max_concurrency", given, "a whole number")
