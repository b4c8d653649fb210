"""Run async code in virtual time and seeded order, on asyncio or trio.

The clock stands still while any task can run, and jumps to the next timer when none can. An hour of sleep costs
nothing, `current_time()` is exact, and a run depends only on its seed. Every run ends: with `Deadlocked` if nothing can
ever run again, with `Spinning` if too many steps are taken at the same virtual time.

Virtual time knows timers only. A socket or a thread takes no virtual time: while one works and a timer is pending, the
clock jumps past it, so inject an inline executor instead. If no timer is pending, other threads have `THREAD_GRACE_S`
real seconds to report back before the run counts as deadlocked.
"""

import asyncio  # noqa: TID251 - this module *is* an asyncio event loop
import functools
import gc
import heapq
import importlib.util
import itertools
import math
import random
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from operator import methodcaller
from selectors import BaseSelector, SelectorKey
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, TypeVarTuple, cast

import anyio

from sampling._picklable import Picklable

_HAS_TRIO = importlib.util.find_spec("trio") is not None
if TYPE_CHECKING or _HAS_TRIO:  # an extra: the asyncio half works without it
    import trio
    import trio.testing

__all__ = ["THREAD_GRACE_S", "Deadlocked", "LoopName", "Spinning", "run_virtual"]

LoopName = Literal["asyncio", "trio"]
"""The name of an event loop."""

THREAD_GRACE_S = 1.0
"""Real seconds to wait for other threads before an idle run counts as deadlocked."""

_AnyTask: TypeAlias = "asyncio.Task[Any] | trio.lowlevel.Task"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_FAILURES = (Exception, KeyboardInterrupt, SystemExit)  # not cancellations: those belong to the event loop
_EVENT_LOOP_PACKAGES = frozenset({"anyio", "asyncio", "trio"})


class Deadlocked(Picklable, AssertionError):
    """No task can run and no timer is due: the code would hang."""

    def __init__(self, now_s: float, horizon_s: float, waiting: Iterable[str]) -> None:
        waits = "".join(f"\n  {line}" for line in waiting)
        super().__init__(f"nothing to run at {now_s!r} s and nothing due before {horizon_s!r} s; waiting:{waits}")


class Spinning(Picklable, AssertionError):
    """The clock stands still for too many steps.

    The cause is a busy wait, or a cancellation that is swallowed again and again.
    """

    def __init__(self, now_s: float, step_limit: int, last: str) -> None:
        super().__init__(f"more than {step_limit} steps at {now_s!r} s; the last was\n  {last}")


def run_virtual(
    async_fn: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    loop: LoopName = "asyncio",
    seed: int | None = None,
    horizon_s: float = 1e6,
    step_limit: int = 10_000,
    on_step: Callable[[], object] | None = None,
) -> T:
    """Run `async_fn(*args)` in virtual time that starts at 0, and return its result.

    With a `seed`, tasks that are ready at the same time run in a seeded random order, as an event loop is free to do,
    and timers that are due at the same time fire in seeded order too. The same seed gives the same order. Without a
    seed the order is that of the loop: first in, first out on asyncio, random on trio.

    `on_step` is called before every task step except the first of the function, outside of any task. Use it to inject a
    fault at an exact step. An exception that it raises ends the run.

    On trio the seeded order is global to the process: do not run two seeded runs in two threads at once.

    Raises:
        Deadlocked: No task could run, and no timer was due before `horizon_s`.
        Spinning: More than `step_limit` steps were taken at the same virtual time.
    """
    if not 0 < horizon_s < math.inf:
        raise ValueError(f"horizon_s must be positive and finite, not {horizon_s!r}")
    if step_limit < 1:
        raise ValueError(f"step_limit must be at least 1, not {step_limit!r}")
    if loop == "asyncio":
        return _run_asyncio(_AsyncioLimits(horizon_s, step_limit, on_step), seed, async_fn, args)
    if loop == "trio":
        if not _HAS_TRIO:
            raise ModuleNotFoundError("loop='trio' needs trio, which is an extra: pip install 'sampling[trio]'")
        return _run_trio(_TrioLimits(horizon_s, step_limit, on_step), seed, async_fn, args)
    raise ValueError(f"loop must be 'asyncio' or 'trio', not {loop!r}")


class _Limits(ABC):
    """The limits of one run, which end it when they are passed.

    A run that fails is cancelled as a whole, including shielded scopes, and gets the same number of steps and seconds
    again to clean up. If it passes the limits once more, it is abandoned.
    """

    scope_class: type
    """The cancel scope class of the event loop."""

    def __init__(self, horizon_s: float, step_limit: int, on_step: Callable[[], object] | None) -> None:
        self.horizon_s = horizon_s
        self.now_s = 0.0
        self.failure: BaseException | None = None
        self.abandoned = False
        self._cleanup_s = horizon_s
        self._step_limit = step_limit
        self._steps_now = 0
        self._on_step = on_step
        self._live = False
        self._scope: anyio.CancelScope | None = None

    def wrap(self, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> Callable[[], Awaitable[T]]:
        """Wrap the function in a cancel scope."""

        @functools.wraps(async_fn)  # names the main task
        async def main() -> T:
            with anyio.CancelScope() as self._scope:
                # `on_step` is not called for the steps of the loop before and after the function.
                self._live = True
                try:
                    return await async_fn(*args)
                finally:
                    self._live = False
            return cast("T", None)  # cancelled by `fail`: its error is raised instead

        return main

    def advance(self, now_s: float) -> None:
        """Move the clock, and count steps from zero again."""
        self.now_s = now_s
        self._steps_now = 0

    def step(self, task: "_AnyTask") -> None:
        """Call `on_step` and count a step of a task."""
        if self._live and self._on_step is not None:
            try:
                self._on_step()
            except _FAILURES as error:
                self.fail(error)
        self.count_step(task)

    def count_step(self, task: "_AnyTask | None" = None) -> None:
        """Count one step at the current virtual time."""
        self._steps_now += 1
        if self._steps_now > self._step_limit:
            self.fail(Spinning(self.now_s, self._step_limit, _describe_task(task)))

    def fail_deadlocked(self, now_s: float, tasks: "Iterable[_AnyTask]") -> None:
        """Fail the run with `Deadlocked`."""
        # On trio the clock has jumped past the horizon already: report the time before the jump.
        deadlock = Deadlocked(self.now_s, self.horizon_s, sorted(map(_describe_task, tasks)))
        self.advance(now_s)
        self.fail(deadlock)

    def fail(self, error: BaseException) -> None:
        """End the run, and abandon it at the second failure."""
        self._live = False
        self._steps_now = 0
        self.horizon_s = self.now_s + self._cleanup_s
        # Only the first failure is raised. Failures during cleanup are its consequences.
        if self.failure is None:
            self.failure = error
            self._cancel()
        else:
            self.abandoned = True
            self.stop_loop()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        # A shield would keep a deadlocked task alive. No event loop has a public list of its scopes.
        for thing in gc.get_objects():
            if issubclass(type(thing), self.scope_class):
                thing.shield = False

    @abstractmethod
    def stop_loop(self) -> None:
        """Make the event loop raise, at once or soon."""

    def collect_garbage(self) -> None:
        """Collect the garbage of an abandoned run."""
        # Otherwise its warnings would appear in a later test.
        self._scope = None
        hook = sys.unraisablehook
        sys.unraisablehook = _ignore
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook


def _call_within_limits(limits: _Limits, run: Callable[[], T]) -> T:
    """Call `run`, and raise the failure of the limits, if any."""
    try:
        result = run()
    except _FAILURES:
        if limits.failure is None:
            raise
    else:
        if limits.failure is None:
            return result
    if limits.abandoned:
        limits.failure.__traceback__ = limits.failure.__context__ = None  # they refer to the garbage
        limits.collect_garbage()
    raise limits.failure


def _raise_abandoned() -> NoReturn:
    raise RuntimeError("this run was abandoned")


def _ignore(*_: object) -> None:
    """Do nothing."""


def _scheduler_rng(seed: int) -> random.Random:
    """Return the random numbers of the scheduler."""
    # The prefix makes them differ from those of a `World` with the same seed.
    return random.Random(f"order {seed}")  # noqa: S311 - a schedule is no secret


def _describe_task(task: "_AnyTask | None") -> str:
    """Return the name of a task and the line where it waits."""
    if task is None:
        return "no task, only callbacks"
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {_innermost_user_line(task.get_coro())}"
    return f"{task.name}: {_innermost_user_line(task.coro)}"


def _innermost_user_line(awaitable: object) -> str:
    """Return the innermost line outside of the event loop packages."""
    place = "in the event loop"
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _EVENT_LOOP_PACKAGES:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return place


# --- asyncio ---------------------------------------------------------------------------------------------------------


def _run_asyncio(
    limits: "_AsyncioLimits", seed: int | None, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]
) -> T:
    def new_loop() -> _VirtualLoop:
        return _VirtualLoop(limits, None if seed is None else _scheduler_rng(seed))

    def run() -> T:
        return anyio.run(limits.wrap(async_fn, args), backend_options={"loop_factory": new_loop})

    return _call_within_limits(limits, run)


class _AsyncioLimits(_Limits):
    """The limits of a run on a `_VirtualLoop`."""

    scope_class = anyio.CancelScope

    def stop_loop(self) -> None:
        """Raise out of the loop. `asyncio.Runner` then cancels every task once more."""
        _raise_abandoned()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock jumps and whose tasks run in seeded order.

    Only task steps are reordered. Plain callbacks keep their place: asyncio guarantees that they run in the order in
    which they were scheduled, and anyio relies on it to deliver cancellations. Reordering them would report correct
    code. Timers that are due at the same time are shuffled, as asyncio does not define their order.
    """

    # Private attributes of the base class. They are the same in Python 3.11, 3.12 and 3.13.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _selector: BaseSelector
    _process_events: Callable[[list[tuple[SelectorKey, int]]], None]

    def __init__(self, limits: _AsyncioLimits, rng: random.Random | None) -> None:
        super().__init__()
        if rng is not None:
            # The debug mode of asyncio records a traceback for every step, which doubles the time of a schedule.
            self.set_debug(False)
        self._limits = limits
        self._rng = rng
        self._creation_counter = itertools.count()
        self._created: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()

    def time(self) -> float:
        """Return the virtual time."""
        return self._limits.now_s

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **kwargs: Any) -> asyncio.Task[T]:
        """Create a task and remember the order of creation."""
        task = super().create_task(coro, **kwargs)
        self._created[task] = next(self._creation_counter)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report the error of a callback, unless the run has failed."""
        if self._limits.failure is None:
            super().call_exception_handler(context)

    def _run_once(self) -> None:
        """Run the handles that are ready now."""
        if not self._ready:
            self._poll_or_advance()
        self._queue_due_timers()
        if self._rng is not None and len(self._ready) > 1:
            self._shuffle_steps(self._rng)
        # A pass with task steps is counted by them. Callbacks that schedule callbacks must end too.
        if not self._run_ready():
            self._limits.count_step()

    def _poll_or_advance(self) -> None:
        """Poll sockets and threads, or jump to the next timer."""
        self._poll(0)
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if self._ready:  # the poll found something
            return
        due_s = self._scheduled[0].when() if self._scheduled else math.inf
        if due_s > self._limits.horizon_s:
            self._wait_for_threads()
        elif due_s > self._limits.now_s:
            self._limits.advance(due_s)

    def _poll(self, timeout_s: float) -> None:
        self._process_events(self._selector.select(timeout_s))

    def _wait_for_threads(self) -> None:
        """Wait for another thread, or fail the run as deadlocked."""
        if threading.active_count() > 1:
            self._poll(THREAD_GRACE_S)
        if not self._ready:
            self._limits.fail_deadlocked(self._limits.now_s, asyncio.all_tasks(self))

    def _queue_due_timers(self) -> None:
        """Move due timers to the ready queue."""
        due: list[asyncio.TimerHandle] = []
        while self._scheduled and self._scheduled[0].when() <= self._limits.now_s:
            due.append(heapq.heappop(self._scheduled))
        if self._rng is None or len(due) < 2:
            self._ready.extend(due)
            return
        for _, group in itertools.groupby(due, methodcaller("when")):
            tied = list(group)
            self._rng.shuffle(tied)
            self._ready.extend(tied)

    def _shuffle_steps(self, rng: random.Random) -> None:
        """Shuffle task steps between plain callbacks.

        Steps are sorted by the creation of their tasks first: tasks that are cancelled together arrive in the order of
        a set, which depends on their addresses.
        """
        batch = [self._ready.popleft() for _ in range(len(self._ready))]
        order: list[asyncio.Handle] = []
        for is_step, group in itertools.groupby(batch, _is_task_step):
            handles = list(group)
            if is_step:
                handles.sort(key=self._creation_order)
                rng.shuffle(handles)
            order += handles
        self._ready.extendleft(reversed(order))

    def _creation_order(self, step: asyncio.Handle) -> int:
        task = _task_of(step)
        return -1 if task is None else self._created.get(task, -1)

    def _run_ready(self) -> int:
        """Run the ready handles and return the number of task steps.

        A handle stays queued until it runs: if the limits stop the run first, its task must still be able to end.
        """
        steps = 0
        # Handles that become ready meanwhile wait for the next pass, as in asyncio.
        for _ in range(len(self._ready)):
            task = _task_of(self._ready[0])
            if task is not None:
                self._limits.step(task)
                steps += 1
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        return steps


def _task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """Return the task of a step, or `None` for a plain callback."""
    # `call_soon(task.cancel)` is bound to a task too, but is no step of it.
    callback = getattr(handle, "_callback", None)
    owner: asyncio.Task[Any] | None = getattr(callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) and getattr(callback, "__name__", "") != "cancel" else None


def _is_task_step(handle: asyncio.Handle) -> bool:
    return _task_of(handle) is not None


# --- trio ------------------------------------------------------------------------------------------------------------


def _run_trio(limits: "_TrioLimits", seed: int | None, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    options = {"clock": limits.clock, "instruments": [limits]}

    def run() -> T:
        return anyio.run(limits.wrap(async_fn, args), backend="trio", backend_options=options)

    with nullcontext() if seed is None else _seeded_trio_scheduler(seed):
        return _call_within_limits(limits, run)


@contextmanager
def _seeded_trio_scheduler(seed: int) -> Generator[None]:
    """Make trio's scheduler shuffle tasks with our seed.

    Seeding alone is not enough: without the flag, trio only reverses each batch at random.
    """
    scheduler = importlib.import_module("trio._core._run")
    ours = {"_ALLOW_DETERMINISTIC_SCHEDULING": True, "_r": _scheduler_rng(seed)}
    missing = [name for name in ours if not hasattr(scheduler, name)]
    if missing:
        raise RuntimeError(
            f"trio {trio.__version__} has no {', '.join(missing)} in trio._core._run, where the order of tasks is "
            "seeded: use an older trio, or loop='asyncio', or seed=None"
        )
    theirs = {name: getattr(scheduler, name) for name in ours}
    vars(scheduler).update(ours)
    try:
        yield
    finally:
        vars(scheduler).update(theirs)


class _TrioLimits(_Limits):
    """The limits of a run on trio, as an instrument."""

    _MAX_IDLE_PASSES = 3  # two are normal: a deadline that wakes no task, then the jump of the clock
    _THREAD_POLL_S = 0.001

    def __init__(self, horizon_s: float, step_limit: int, on_step: Callable[[], object] | None) -> None:
        super().__init__(horizon_s, step_limit, on_step)
        self.scope_class = trio.CancelScope
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self._idle_passes = 0

    def before_task_step(self, task: "trio.lowlevel.Task") -> None:
        """Count a step of a user task."""
        self._idle_passes = 0
        # System tasks of trio have such names. The scenario does not control when they run.
        if not task.name.startswith("<"):
            self.step(task)

    def before_io_wait(self, timeout: float) -> None:
        """Fail the run if nothing has moved for several passes."""
        if self.abandoned:
            return
        now_s = self.clock.current_time()
        self._idle_passes += 1
        if now_s > self.horizon_s or (self._idle_passes > self._MAX_IDLE_PASSES and not self._wait_for_threads()):
            self.fail_deadlocked(now_s, _task_tree(trio.lowlevel.current_root_task()))
        elif now_s != self.now_s:
            self._idle_passes = 0
            self.advance(now_s)

    def _wait_for_threads(self) -> bool:
        """Sleep briefly, and return False if no thread can wake the run any more."""
        if threading.active_count() == 1 or self._idle_passes * self._THREAD_POLL_S > THREAD_GRACE_S:
            return False
        time.sleep(self._THREAD_POLL_S)
        return True

    def stop_loop(self) -> None:
        """Make the clock raise, because trio only logs the exceptions of instruments."""
        self.clock.current_time = _raise_abandoned  # type: ignore[method-assign]


def _task_tree(task: "trio.lowlevel.Task | None") -> "Iterator[trio.lowlevel.Task]":
    """Yield a task and all of its descendants, without trio's system tasks."""
    if task is not None:
        if not task.name.startswith("<"):
            yield task
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from _task_tree(child)
