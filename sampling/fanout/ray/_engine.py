"""`RayEngine`: the calls of a fan-out on the workers of a Ray cluster."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from itertools import count
from types import TracebackType
from typing import Any, Self

import anyio
import attrs
import structlog

from sampling._arguments import check_int, check_number, check_str, wrong_type
from sampling._engine import scope as identity
from sampling.errors import WorkerLost
from sampling.fanout.engines import SampleItem, Work
from sampling.fanout.items import Item
from sampling.fanout.ray._allowances import Allowances
from sampling.fanout.ray._cluster import Actor, Cluster, Lost
from sampling.fanout.ray._wire import Job, Reply, pack_job, pack_shared, unpack_reply
from sampling.protocols import BackendLike
from sampling.results import SamplingResult

__all__ = ["RayEngine"]

log = structlog.get_logger("sampling")


class RayEngine:
    """
    Runs the call of each item on one of `actors` processes of a Ray cluster; everything else stays here.

        result = await fan_out(strategy, items, None, backend, engine=RayEngine(actors=8))

    Reading items, their order, halting, the budget, the journal and events of the run stay with the driver.
    A worker gets the strategy, the requirements and the backend once, then one question after another, many at once.
    Hooks on events of a call run where the call runs, so they must be functions that can be sent there.

    An item that is cancelled is stopped on its worker, before the cancellation goes on here.
    When a worker dies, its items are run once more, one at a time, on the worker that takes its place, for one of
    them may be what killed it; only then do they end with `WorkerLost`. The others go on.

    Without an address, and without RAY_ADDRESS, a Ray of its own is started on this machine and stopped at the end:
    of a run, or of the block if the engine is used in an `async with`. A Ray that the program has started is used
    as it is. Neither the user's home is written to, nor usage statistics are sent, unless RAY_* variables say so.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        actors: int = 2,
        backend_factory: Callable[[], BackendLike] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        init_options: Mapping[str, Any] | None = None,
        stop_grace_s: float = 10.0,
    ) -> None:
        """
        Set up an engine; nothing is started before it is used.

        Args:
            address: Of a running cluster, as `ray.init` takes it. None: RAY_ADDRESS, else a Ray of its own.

            actors: How many processes to use.

            backend_factory: Makes the backend on each worker, for backends that hold connections or keys.
                If what it returns is an async context manager, it is opened there, and closed at the end.
                The run's own backend then stays here, and is not used.

            actor_options: What each of them needs, as Ray's `.options()` takes it: resources, a runtime_env, …

            init_options: How to start Ray or connect to it, as `ray.init` takes it.

            stop_grace_s: How long a worker may take to stop a call that was cancelled, or to close its backend.
        """
        if address is not None:
            check_str("address", address, empty=False)
        if backend_factory is not None and not callable(backend_factory):
            raise wrong_type("backend_factory", backend_factory, "a function that makes a backend, or None")
        self.actors = check_int("actors", actors, least=1)
        self.stop_grace_s = check_number("stop_grace_s", stop_grace_s, above=0)
        self.backend_factory = backend_factory
        self.actor_options = _options("actor_options", actor_options)
        self._cluster = Cluster(address, actors, _options("init_options", init_options))

    async def __aenter__(self) -> Self:
        """Start Ray, or connect to it, for all runs inside the block."""
        await self._cluster.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._cluster.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102 - it shields itself

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """Get ready for one run."""
        return _Run(self._cluster, work, self)

    def __repr__(self) -> str:
        return f"RayEngine({self._cluster.address!r}, actors={self.actors})"


def _options(name: str, options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise wrong_type(name, options, "a mapping of option names to values, or None")
    return dict(options)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


@attrs.define(eq=False)
class _Slot:
    """The place of one worker: when that dies, another takes it."""

    actor: Actor
    in_flight: int = 0
    suspects: int = 0
    """How many items wait here, or run, for the second time: any of them may be what killed the worker before."""

    alone: anyio.Lock = attrs.field(factory=anyio.Lock)
    """Held by the suspect that runs."""


@attrs.define
class _Errand:
    """One item on its way to a worker and back."""

    item: Item[Any]
    slot: _Slot = attrs.field(init=False)
    """Where it ran last."""

    reply: Reply | None = attrs.field(init=False)
    """What came back: nothing was spent before it went out, and afterwards, None says that nobody knows what was."""


class _Run:
    """One run on the cluster: the slots, and who goes where."""

    def __init__(self, cluster: Cluster, work: Work, engine: RayEngine) -> None:
        self._cluster = cluster
        self._work = work
        self._engine = engine
        self._allowances = Allowances(work)
        self._calls = count()
        self._stack = AsyncExitStack()
        self._slots: list[_Slot] = []
        self._packed: Any = None
        self._names: dict[str, Any] = {}
        self._calm = anyio.Event()
        """Set, and made anew, when a slot has no suspects any more."""

    # Its life.

    async def __aenter__(self) -> SampleItem:
        packed, shared = pack_shared(self._work, self._engine.backend_factory)
        self._names = shared.names()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            stack.push_async_callback(self._close)
            self._packed = await self._cluster.share(packed)
            self._slots = [_Slot(self._new_actor()) for _ in range(self._engine.actors)]
            for slot in self._slots:
                await self._wait_until_ready(slot.actor)
            self._stack = stack.pop_all()
        return self._sample

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _new_actor(self) -> Actor:
        # Every item may be on one worker, and each may be told to stop.
        most_calls = 2 * self._work.max_concurrency + 4
        return self._cluster.new_actor(self._packed, most_calls=most_calls, options=self._engine.actor_options)

    async def _wait_until_ready(self, actor: Actor) -> None:
        try:
            started = unpack_reply(await actor.call("ready"), {})
        except Lost as lost:
            raise WorkerLost(f"a worker died while it started: {lost}") from None
        if started.error is not None:
            raise started.error

    async def _close(self) -> None:
        """Close what the workers hold, and end them."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for slot in self._slots:
                    group.start_soon(self._close_actor, slot.actor)

    async def _close_actor(self, actor: Actor) -> None:
        with anyio.move_on_after(self._engine.stop_grace_s):  # noqa: ASYNC912 - the close is one
            try:
                await actor.close()
            except Exception as error:  # noqa: BLE001 - a backend that can't close must not hold up the others
                log.warning("worker_not_closed", error_type=type(error).__name__)
        await actor.kill()

    # Items.

    async def _sample(self, item: Item[Any]) -> SamplingResult[Any]:
        """Run an item; if its worker dies, once more, with a worker to itself."""
        errand = _Errand(item)
        try:
            return await self._run(errand)
        except Lost:
            slot = errand.slot
            # In the same step, so that nobody is put beside it.
            slot.suspects += 1
        try:
            async with slot.alone:
                return await self._run(errand, slot)
        except Lost:
            raise WorkerLost("the worker that ran this died, and so did the one that ran it once more") from None
        finally:
            slot.suspects -= 1
            if not slot.suspects:
                self._calm.set()
                self._calm = anyio.Event()

    async def _run(self, errand: _Errand, slot: _Slot | None = None) -> SamplingResult[Any]:
        """Run an item once, in this slot or in any, and settle what it spent, however it ends."""
        grant = await self._allowances.grant(errand.item)
        errand.reply = Reply()
        try:
            errand.slot = slot or await self._trusted_slot()
            return await self._ask(errand, Job(item=errand.item, allowance=grant.allowance))
        finally:
            self._allowances.settle(grant, errand.reply)
            _count(errand.reply)

    async def _trusted_slot(self) -> _Slot:
        """Return the slot with the fewest items, of those without suspects; wait, if there is none."""
        while not (trusted := [slot for slot in self._slots if not slot.suspects]):
            await self._calm.wait()
        return min(trusted, key=lambda slot: slot.in_flight)

    async def _ask(self, errand: _Errand, job: Job) -> SamplingResult[Any]:
        slot, packed = errand.slot, pack_job(job)
        actor, call = slot.actor, str(next(self._calls))
        slot.in_flight += 1
        # From here on, nobody knows what it spends until it says so.
        errand.reply = None
        names = job.names(self._names)
        try:
            future = actor.submit("sample", call, packed)
            try:
                errand.reply = unpack_reply(await actor.result_of(future), names)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    errand.reply = await self._stop(slot, actor, call, future, names)
                raise
        except Lost:
            self._replace(slot, actor)
            raise
        finally:
            slot.in_flight -= 1
        return _result_of(errand.reply)

    async def _stop(
        self, slot: _Slot, actor: Actor, call: str, future: "Future[Any]", names: dict[str, Any]
    ) -> Reply | None:
        """Stop a call on its worker, and return what it had spent; a worker that does not stop it is ended."""
        with anyio.move_on_after(self._engine.stop_grace_s):  # noqa: ASYNC912 - the wait is one
            actor.submit("stop", call)
            with suppress(Lost):
                return unpack_reply(await actor.result_of(future), names)
        log.warning("worker_ended", why="it did not stop a call that was cancelled, or had died")
        self._replace(slot, actor)
        return None

    def _replace(self, slot: _Slot, actor: Actor) -> None:
        """Put a new worker in the place of this one, once, whoever sees first that it is gone."""
        if slot.actor is actor:
            slot.actor = self._new_actor()
            actor.kill_soon()


def _count(reply: Reply | None) -> None:
    """Tell the run what the item of this task has spent."""
    place = identity.current_item()
    if place is not None and reply is not None:
        place.spent += reply.usage
        place.requests += reply.requests


def _result_of(reply: Reply) -> SamplingResult[Any]:
    if reply.error is not None:
        raise reply.error
    if reply.result is None:
        raise WorkerLost("the worker stopped this without being told to")
    return reply.result
