"""Run async code in virtual time, in an order that a seed decides, on either event loop.

Time stands still while anything can run, and jumps to the next timer when nothing can: an hour of sleep costs nothing,
`current_time()` is exact, and a run is a function of its seed. A run always ends: `Deadlocked` when nothing can ever
run again, `Spinning` when time stands still for too many steps.

Virtual time knows timers, not the outside world. A socket or a thread takes no virtual time, so while one works and a
timer is pending, time jumps past it; inject an inline executor instead. With no timer pending, other threads are given
`THREAD_GRACE_S` real seconds to report back before the run counts as deadlocked.
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

_HAS_TRIO = importlib.util.find_spec("trio") is not None
if TYPE_CHECKING or _HAS_TRIO:  # an extra: the asyncio half works without it
    import trio
    import trio.testing

__all__ = ["THREAD_GRACE_S", "Deadlocked", "LoopName", "Spinning", "run_virtual"]

LoopName = Literal["asyncio", "trio"]
"""The event loops that a run can be on."""

THREAD_GRACE_S = 1.0
"""Real seconds that an idle run waits for other threads, if there are any, before it counts as deadlocked."""

_AnyTask: TypeAlias = "asyncio.Task[Any] | trio.lowlevel.Task"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_FAILURES = (Exception, KeyboardInterrupt, SystemExit)  # all but a cancellation, which is not ours to catch
_EVENT_LOOP_PACKAGES = frozenset({"anyio", "asyncio", "trio"})


class Deadlocked(AssertionError):
    """Nothing can run and no timer is due before the horizon: outside of virtual time this would hang."""

    def __init__(self, now_s: float, horizon_s: float, waiting: Iterable[str]) -> None:
        waits = "".join(f"\n  {line}" for line in waiting)
        super().__init__(f"nothing to run at {now_s!r} s and nothing due before {horizon_s!r} s; waiting:{waits}")


class Spinning(AssertionError):
    """Steps are taken but time does not move: a busy wait, or a cancellation that is swallowed again and again."""

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
    """Run `async_fn(*args)` in virtual time that starts at 0; return what it returns, raise what it raises.

    With a `seed`, tasks that are ready together run in a seeded random order, as any event loop would be free to run
    them; the same seed gives the same order. Timers that are due at the same instant fire in seeded order too. Without
    a seed the order is the loop's own: first in, first out on asyncio, a coin toss on trio.

    `on_step` is called before every task step but the function's first, outside of any task. It is the place to inject
    a fault at an exact point; what it raises ends the run.

    On trio the order is a global of the process: do not have two seeded runs in two threads at once.

    Raises:
        Deadlocked: nothing could run, and nothing was due before `horizon_s`.
        Spinning: one virtual instant took more than `step_limit` steps.
    """
    if not 0 < horizon_s < math.inf:
        raise ValueError(f"horizon_s must be positive and finite, not {horizon_s!r}")
    if step_limit < 1:
        raise ValueError(f"step_limit must be at least 1, not {step_limit!r}")
    if loop == "asyncio":
        return _run_asyncio(_AsyncioWatch(horizon_s, step_limit, on_step), seed, async_fn, args)
    if loop == "trio":
        if not _HAS_TRIO:
            raise ModuleNotFoundError("loop='trio' needs trio, which is an extra: pip install 'sampling[trio]'")
        return _run_trio(_TrioWatch(horizon_s, step_limit, on_step), seed, async_fn, args)
    raise ValueError(f"loop must be 'asyncio' or 'trio', not {loop!r}")


class _Watch(ABC):
    """Sees to it that one run ends: its limits, how much of them is used, and the verdict when they are passed.

    A run that fails is cancelled as a whole, shields or not, and gets as many steps and seconds again to clean up. If
    it fails in that too, it is abandoned where it stands.
    """

    scope_class: type
    """The event loop's own kind of cancel scope."""

    def __init__(self, horizon_s: float, step_limit: int, on_step: Callable[[], object] | None) -> None:
        self.horizon_s = horizon_s
        self.now_s = 0.0
        self.verdict: BaseException | None = None
        self.abandoned = False
        self._cleanup_s = horizon_s
        self._step_limit = step_limit
        self._steps_now = 0
        self._on_step = on_step
        self._live = False
        self._scope: anyio.CancelScope | None = None

    def guard(self, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> Callable[[], Awaitable[T]]:
        """Return the function in a scope of its own, with its steps told from those of the loop's start and end."""

        @functools.wraps(async_fn)  # the main task is called after it
        async def main() -> T:
            with anyio.CancelScope() as self._scope:
                self._live = True
                try:
                    return await async_fn(*args)
                finally:
                    self._live = False
            return cast("T", None)  # cancelled by the watch: its verdict is raised instead

        return main

    def jump(self, now_s: float) -> None:
        """Say that time has moved."""
        self.now_s = now_s
        self._steps_now = 0

    def step(self, task: "_AnyTask") -> None:
        """Say that a task is about to take a step."""
        if self._live and self._on_step is not None:
            try:
                self._on_step()
            except _FAILURES as error:
                self.fail(error)
        self.count(task)

    def count(self, task: "_AnyTask | None" = None) -> None:
        """Count one step of this virtual instant, by a task or by none."""
        self._steps_now += 1
        if self._steps_now > self._step_limit:
            self.fail(Spinning(self.now_s, self._step_limit, _whereabouts(task)))

    def stuck(self, now_s: float, tasks: "Iterable[_AnyTask]") -> None:
        """Say that nothing can run, nor will before the horizon, which time may have jumped over already."""
        deadlock = Deadlocked(self.now_s, self.horizon_s, sorted(map(_whereabouts, tasks)))
        self.jump(now_s)
        self.fail(deadlock)

    def fail(self, error: BaseException) -> None:
        """End the run. The first failure is the verdict: what then goes wrong in the cleanup is not the news."""
        self._live = False
        self._steps_now = 0
        self.horizon_s = self.now_s + self._cleanup_s
        if self.verdict is None:
            self.verdict = error
            self._cancel()
        else:
            self.abandoned = True
            self.break_off()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        for thing in gc.get_objects():
            if issubclass(type(thing), self.scope_class):
                thing.shield = False

    @abstractmethod
    def break_off(self) -> None:
        """Have the event loop end with an exception, at once or at its next pass."""

    def bury(self) -> None:
        """Collect what an abandoned run left behind, here and now: no later test is to be blamed for its last words."""
        self._scope = None
        hook = sys.unraisablehook
        sys.unraisablehook = _ignore
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook


def _settle(watch: _Watch, run: Callable[[], T]) -> T:
    """Return what `run` returns or raise what it raises, unless there is a verdict: then raise that one, bare."""
    try:
        result = run()
    except _FAILURES:
        if watch.verdict is None:
            raise
    else:
        if watch.verdict is None:
            return result
    if watch.abandoned:
        watch.verdict.__traceback__ = watch.verdict.__context__ = None  # they hold on to what is to be buried
        watch.bury()
    raise watch.verdict


def _abandon() -> NoReturn:
    raise RuntimeError("this run was abandoned")


def _ignore(*_: object) -> None:
    """Take any arguments and do nothing."""


def _order(seed: int) -> random.Random:
    """Return the scheduler's own stream, apart from that of a world which is seeded with the same number."""
    return random.Random(f"order {seed}")  # noqa: S311 - a schedule is no secret


def _whereabouts(task: "_AnyTask | None") -> str:
    """Say who waits, and where."""
    if task is None:
        return "no task, only callbacks"
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {_place(task.get_coro())}"
    return f"{task.name}: {_place(task.coro)}"


def _place(awaitable: object) -> str:
    """Return the innermost frame that is not the event loop's own: the line that the user wrote."""
    place = "in the event loop"
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _EVENT_LOOP_PACKAGES:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return place


# --- asyncio ---------------------------------------------------------------------------------------------------------


def _run_asyncio(
    watch: "_AsyncioWatch", seed: int | None, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]
) -> T:
    def new_loop() -> _VirtualLoop:
        return _VirtualLoop(watch, None if seed is None else _order(seed))

    def run() -> T:
        return anyio.run(watch.guard(async_fn, args), backend_options={"loop_factory": new_loop})

    return _settle(watch, run)


class _AsyncioWatch(_Watch):
    """The watch of a `_VirtualLoop`, which lets it raise."""

    scope_class = anyio.CancelScope

    def break_off(self) -> None:
        """Raise right out of the loop; asyncio then cancels every task once more, natively, before it gives up."""
        _abandon()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock jumps and whose tasks run in seeded order.

    Only task steps change places. A plain callback is a barrier: asyncio promises that callbacks run in the order they
    were scheduled in, anyio's delivery of cancellations relies on it, and correct code would be reported. Timers that
    tie are different, since asyncio leaves their order undefined.
    """

    # Where the base class keeps what is ready and what is scheduled: private, and the same in Python 3.11, 3.12, 3.13.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _selector: BaseSelector
    _process_events: Callable[[list[tuple[SelectorKey, int]]], None]

    def __init__(self, watch: _AsyncioWatch, rng: random.Random | None) -> None:
        super().__init__()
        self._watch = watch
        self._rng = rng
        self._births = itertools.count()
        self._born: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()

    def time(self) -> float:
        """Return the virtual time."""
        return self._watch.now_s

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **kwargs: Any) -> asyncio.Task[T]:
        """Create a task and remember its place in the order of births."""
        task = super().create_task(coro, **kwargs)
        self._born[task] = next(self._births)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what a callback or a lost task raised, unless the run has failed already and is being torn down."""
        if self._watch.verdict is None:
            super().call_exception_handler(context)

    def _run_once(self) -> None:
        """Take one pass over what is ready now; what becomes ready meanwhile waits for the next."""
        if not self._ready:
            self._idle()
        self._wake()
        if self._rng is not None and len(self._ready) > 1:
            self._shuffle(self._rng)
        if not self._run_ready():
            self._watch.count()

    def _idle(self) -> None:
        """Take what sockets and threads have brought, else jump to the next timer."""
        self._poll(0)
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if self._ready:  # brought by the poll
            return
        due_s = self._scheduled[0].when() if self._scheduled else math.inf
        if due_s > self._watch.horizon_s:
            self._await_threads()
        elif due_s > self._watch.now_s:
            self._watch.jump(due_s)

    def _poll(self, timeout_s: float) -> None:
        self._process_events(self._selector.select(timeout_s))

    def _await_threads(self) -> None:
        """Wait for another thread to wake the loop; if there is none or it doesn't, nothing ever will."""
        if threading.active_count() > 1:
            self._poll(THREAD_GRACE_S)
        if not self._ready:
            self._watch.stuck(self._watch.now_s, asyncio.all_tasks(self))

    def _wake(self) -> None:
        """Move timers that are due to what is ready."""
        due: list[asyncio.TimerHandle] = []
        while self._scheduled and self._scheduled[0].when() <= self._watch.now_s:
            due.append(heapq.heappop(self._scheduled))
        if self._rng is None or len(due) < 2:
            self._ready.extend(due)
            return
        for _, group in itertools.groupby(due, methodcaller("when")):
            tied = list(group)
            self._rng.shuffle(tied)
            self._ready.extend(tied)

    def _shuffle(self, rng: random.Random) -> None:
        """Let task steps change places between barriers.

        They are put in order of birth first: tasks that are cancelled together arrive in the order of a set, which is
        that of their addresses.
        """
        batch = [self._ready.popleft() for _ in range(len(self._ready))]
        order: list[asyncio.Handle] = []
        for is_step, group in itertools.groupby(batch, _is_step):
            handles = list(group)
            if is_step:
                handles.sort(key=self._birth)
                rng.shuffle(handles)
            order += handles
        self._ready.extendleft(reversed(order))

    def _birth(self, step: asyncio.Handle) -> int:
        task = _task_of(step)
        return -1 if task is None else self._born.get(task, -1)

    def _run_ready(self) -> int:
        """Run what is ready and return how many tasks took a step.

        A handle stays queued until it runs. If the watch stops the run first, its task must still be able to end.
        """
        steps = 0
        for _ in range(len(self._ready)):
            task = _task_of(self._ready[0])
            if task is not None:
                self._watch.step(task)
                steps += 1
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        return steps


def _task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """Return the task whose step this is, or `None` for a plain callback, such as a `task.cancel` that is scheduled."""
    callback = getattr(handle, "_callback", None)
    owner: asyncio.Task[Any] | None = getattr(callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) and getattr(callback, "__name__", "") != "cancel" else None


def _is_step(handle: asyncio.Handle) -> bool:
    return _task_of(handle) is not None


# --- trio ------------------------------------------------------------------------------------------------------------


def _run_trio(watch: "_TrioWatch", seed: int | None, async_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    options = {"clock": watch.clock, "instruments": [watch]}

    def run() -> T:
        return anyio.run(watch.guard(async_fn, args), backend="trio", backend_options=options)

    with nullcontext() if seed is None else _trio_order(seed):
        return _settle(watch, run)


@contextmanager
def _trio_order(seed: int) -> Generator[None]:
    """Have trio's scheduler shuffle, and from our stream.

    Seeding alone is not enough: trio then only tosses a coin whether to reverse each batch.
    """
    scheduler = importlib.import_module("trio._core._run")
    ours = {"_ALLOW_DETERMINISTIC_SCHEDULING": True, "_r": _order(seed)}
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


class _TrioWatch(_Watch):
    """The watch as a trio instrument, which may look on and cancel but not raise."""

    _STILL_PASSES = 3  # two are normal: a deadline passes that wakes nobody, and then the clock jumps on
    _NAP_S = 0.001

    def __init__(self, horizon_s: float, step_limit: int, on_step: Callable[[], object] | None) -> None:
        super().__init__(horizon_s, step_limit, on_step)
        self.scope_class = trio.CancelScope
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self._still_passes = 0

    def before_task_step(self, task: "trio.lowlevel.Task") -> None:
        """Count the step, unless it is one of trio's own tasks: when those run is not the scenario's doing."""
        self._still_passes = 0
        if not task.name.startswith("<"):
            self.step(task)

    def before_io_wait(self, timeout: float) -> None:
        """See whether time or a task has moved since the last pass."""
        if self.abandoned:
            return
        now_s = self.clock.current_time()
        self._still_passes += 1
        if now_s > self.horizon_s or (self._still_passes > self._STILL_PASSES and not self._nap()):
            self.stuck(now_s, _family(trio.lowlevel.current_root_task()))
        elif now_s != self.now_s:
            self._still_passes = 0
            self.jump(now_s)

    def _nap(self) -> bool:
        """Give other threads a moment, if there are any and they have not had `THREAD_GRACE_S`."""
        if threading.active_count() == 1 or self._still_passes * self._NAP_S > THREAD_GRACE_S:
            return False
        time.sleep(self._NAP_S)
        return True

    def break_off(self) -> None:
        """Break the clock, the one thing of ours that trio lets fail."""
        self.clock.current_time = _abandon  # type: ignore[method-assign]


def _family(task: "trio.lowlevel.Task | None") -> "Iterator[trio.lowlevel.Task]":
    """Go through a task and all tasks below it, but for trio's own."""
    if task is not None:
        if not task.name.startswith("<"):
            yield task
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from _family(child)
