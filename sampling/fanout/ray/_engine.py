"""`RayEngine`, which runs calls on a Ray cluster."""

import copy
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import anyio
import attrs
from anyio.abc import TaskGroup

from sampling._arguments import check_int, check_number, check_str, wrong_type
from sampling._engine.scope import current_item
from sampling._log import Logger
from sampling.errors import WorkerLost
from sampling.fanout.engines import SampleItem, Work
from sampling.fanout.items import Item
from sampling.fanout.ray._allowances import Allowances, Grant
from sampling.fanout.ray._cluster import RESOURCES, Actor, ActorLost, Cluster, Stored
from sampling.fanout.ray._wire import INSTALL_HINT, WorkerJob, WorkerReply, pack_job, pack_shared, unpack_reply
from sampling.protocols import BackendLike
from sampling.results import SamplingResult

__all__ = ["RayEngine"]

log = Logger()

_ISOLATED_PER_WORKER: Final = 2
"""The number of workers for each of `actors` that run items of dead workers again."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class RayEngine:
    """
    Runs the calls in processes of a Ray cluster.

        result = await fan_out(strategy, items, None, backend, engine=RayEngine(actors=8))

    The driver reads and orders items, halts the run, keeps the budget and the journal, and emits events of the run.
    A worker receives the strategy, the requirements and the backend once, and then many items at once.
    Hooks on events of a call run on the worker, so they must be functions that can be pickled.

    A cancelled item is stopped on its worker before the cancellation is raised here.
    When a worker dies, its items run a second time, each alone on a worker, because one of them may have killed it.
    Up to two such workers for each of `actors` run at once, and end afterwards. If `actor_options` reserve resources,
    the items run one at a time on the worker that replaces the dead one.
    An item whose second worker dies ends with `WorkerLost`. Other items are not affected.
    While no replacement of a dead worker can be started, the other workers run its share.
    Workers with another version of this library or of Python are refused.

    Without an address and without RAY_ADDRESS, the engine starts its own Ray on this machine. It stops that Ray after
    the run, or at the end of the block if the engine is used in an `async with`. A Ray that the program has started
    is used and left running. Nothing is written to the user's home, and no usage statistics are sent, unless RAY_*
    variables are set to do so.
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
        start_timeout_s: float = 300.0,
    ) -> None:
        """
        Configure the engine. Ray is started on first use.

        Args:
            address: The address of a running cluster, as in `ray.init`. None uses RAY_ADDRESS, else starts a local Ray.

            actors: The number of worker processes.

            backend_factory: Creates the backend on each worker, for backends that hold connections or keys.
                An async context manager is entered there, and exited at the end.
                The backend that was passed to the run is then not used.

            actor_options: Options of each actor, as in Ray's `.options()`: resources, a runtime_env, …

            init_options: Options of `ray.init`.

            stop_grace_s: The time a worker has to stop a cancelled call, or to close its backend.

            start_timeout_s: The time a worker has to start. After that `WorkerLost` says what is missing. It ends the
                run at its start. Later, it is the error of items that no worker can run.
        """
        if address is not None:
            check_str("address", address, empty=False)
        if backend_factory is not None and not callable(backend_factory):
            raise wrong_type("backend_factory", backend_factory, "a function that returns a backend, or None")
        self.actors: int = check_int("actors", actors, least=1)
        self.stop_grace_s: float = check_number("stop_grace_s", stop_grace_s, above=0)
        self.start_timeout_s: float = check_number("start_timeout_s", start_timeout_s, above=0)
        self.backend_factory = backend_factory
        self.actor_options: dict[str, Any] = _options("actor_options", actor_options)
        self._cluster = Cluster(address, actors, _options("init_options", init_options))

    async def __aenter__(self) -> Self:
        """Start or connect to Ray for several runs."""
        await self._cluster.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._cluster.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102 - it shields itself

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """Return a context manager for one run."""
        return _RayRun(self._cluster, work, self)

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
    """The slot of one worker. When the worker dies, a new one takes the slot."""

    actor: Actor
    is_up: bool = False
    failure: Exception | None = None
    """Why the worker could not be started, until it is."""

    in_flight: int = 0
    suspects: int = 0
    """The number of items that wait here, or run, for the second time. One of them may have killed the worker."""

    alone: anyio.Lock = attrs.field(factory=anyio.Lock)
    """Held by the suspect that is running."""

    @property
    def takes_any(self) -> bool:
        """True if any item may be sent here."""
        return self.is_up and not self.suspects


@attrs.define
class _RemoteItem:
    """One item that runs on a worker."""

    item: Item[Any]
    slot: _Slot = attrs.field(init=False)
    """The slot in which it ran last."""

    reply: WorkerReply | None = attrs.field(init=False)
    """The reply of the worker. Empty before the item is sent, and None while its spending is unknown."""


class _RayRun:
    """One run on the cluster. It assigns items to slots."""

    def __init__(self, cluster: Cluster, work: Work, engine: RayEngine) -> None:
        self._cluster = cluster
        self._work = work
        self._engine = engine
        self._allowances = Allowances(work)
        self._calls = count()
        self._stack = AsyncExitStack()
        self._slots: list[_Slot] = []
        self._stored: Stored
        self._stored_alone: Stored
        """For workers that run one item."""

        self._names: dict[str, Any] = {}
        self._starters: TaskGroup
        self._context = copy_context()
        self._changed = anyio.Event()
        """Set and replaced when a slot has no more suspects, its worker has started, or that has failed."""

        # Workers that reserve resources can't be added at will: the cluster may have no more of them.
        self._isolates = not any(engine.actor_options.get(name) for name in RESOURCES)
        share = self._requests_per_worker()
        isolated = _ISOLATED_PER_WORKER * engine.actors
        # Each of them sends one request at a time, and together they have the share of a worker that died.
        self._isolation = anyio.Semaphore(isolated if share is None else min(isolated, share))
        self._leaves_slot = not self._isolates or share is not None
        """Whether the slot of a dead worker takes no other items until its items have run again."""

        self._idle: list[_Slot] = []
        self._used = 0

    # Enter and exit.

    async def __aenter__(self) -> SampleItem:
        share, factory = self._requests_per_worker(), self._engine.backend_factory
        packed, shared = pack_shared(self._work, factory, share)
        alone = packed if share is None else pack_shared(self._work, factory, 1)[0]
        self._names = shared.names()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            self._stored = await self._share(packed, stack)
            self._stored_alone = self._stored if alone is packed else await self._share(alone, stack)
            stack.push_async_callback(self._close)
            for _ in range(self._engine.actors):
                self._slots.append(_Slot(self._new_actor(self._stored)))
            await self._warn_if_unsatisfiable()
            for slot in self._slots:
                await self._wait_until_ready(slot.actor)
                slot.is_up = True
            self._starters = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._starters.cancel_scope.cancel)
            self._stack = stack.pop_all()
        return self._sample

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _warn_if_unsatisfiable(self) -> None:
        # A cluster that scales may add a node that fits, so this is not an error yet.
        problem = await self._cluster.unsatisfiable(self._engine.actor_options)
        if problem is not None:
            log.warning("workers_can_not_be_placed", why=problem, start_timeout_s=self._engine.start_timeout_s)

    def _requests_per_worker(self) -> int | None:
        """Return an equal share of the requests that may be in flight."""
        limit, actors = self._work.max_requests, self._engine.actors
        if limit is not None and limit < actors:
            raise ValueError(
                f"max_requests must be at least {actors}, one for each worker, got {limit}: use fewer actors"
            )
        return None if limit is None else limit // actors

    async def _share(self, packed: bytes, stack: AsyncExitStack) -> Stored:
        stored = await self._cluster.share(packed)
        stack.callback(stored.drop)
        return stored

    def _new_actor(self, stored: Stored) -> Actor:
        # All items may be on one worker, and each may need a concurrent call of `stop`.
        max_calls = 2 * self._work.max_concurrency + 4
        return self._cluster.new_actor(stored, max_calls=max_calls, options=self._engine.actor_options)

    async def _wait_until_ready(self, actor: Actor) -> None:
        with anyio.move_on_after(self._engine.start_timeout_s) as timer:
            try:
                started = unpack_reply(await actor.call("ready"), {})
            except ActorLost as lost:
                raise _died_at_start(str(lost)) from None
            if started.error is not None:
                raise started.error
        if timer.cancelled_caught:
            options = self._engine.actor_options
            why = await self._cluster.why_not_placed(options)
            raise _not_started(f"a worker has not started within {self._engine.start_timeout_s:g} s: {why}")

    async def _start_again(self, slot: _Slot) -> None:
        """Start a new worker in a slot, and try again until one starts."""
        pause_s = _FIRST_PAUSE_S
        while not slot.is_up:
            slot.actor = self._new_actor(self._stored)
            try:
                await self._wait_until_ready(slot.actor)
                slot.is_up, slot.failure = True, None
            except Exception as error:  # noqa: BLE001 - the other workers go on, and items that have none raise it
                log.warning("worker_not_started", error_type=type(error).__name__, again_in_s=pause_s)
                slot.actor.kill_soon()
                slot.failure = error
            self._notify()
            if slot.failure is not None:
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _close(self) -> None:
        """Close the backends of the workers, and kill the workers."""
        await self._close_all([*self._slots, *self._idle])

    async def _close_all(self, slots: Sequence[_Slot]) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for slot in slots:
                    group.start_soon(self._end_worker, slot)

    async def _end_worker(self, slot: _Slot) -> None:
        if slot.is_up:
            with anyio.move_on_after(self._engine.stop_grace_s):  # noqa: ASYNC912 - the close is one
                try:
                    await slot.actor.close()
                except Exception as error:  # noqa: BLE001 - a backend that fails to close must not affect the others
                    log.warning("worker_not_closed", error_type=type(error).__name__)
        await slot.actor.kill()

    # Items.

    async def _sample(self, item: Item[Any]) -> SamplingResult[Any]:
        """
        Run an item.

        If its worker dies, run it a second time, alone on a worker.
        """
        remote = _RemoteItem(item)
        try:
            return await self._run(remote)
        except ActorLost:
            slot = remote.slot
            # No await since the loss, so that no other item is assigned to this slot meanwhile.
            slot.suspects += self._leaves_slot
        if self._work.notes is not None:
            self._work.notes.maybe_billed_twice(item.index)
        try:
            async with self._isolated() if self._isolates else self._alone_in(slot) as second:
                return await self._run(remote, second)
        except ActorLost:
            raise WorkerLost("the worker that ran this item died, and so did the worker of its second try") from None
        finally:
            slot.suspects -= self._leaves_slot
            if not slot.suspects:
                self._notify()

    @asynccontextmanager
    async def _isolated(self) -> AsyncGenerator[_Slot]:
        """Yield a separate slot for an item that may have killed its worker."""
        async with self._isolation:
            slot: _Slot | None = None
            self._used += 1
            try:
                slot = self._idle.pop() if self._idle else await self._new_isolated_slot()
                yield slot
            finally:
                self._used -= 1
                if slot is not None and slot.is_up:
                    self._idle.append(slot)
                if not self._used:
                    idle, self._idle = self._idle, []
                    await self._close_all(idle)  # noqa: ASYNC102 - shielded, and each close has a limit

    async def _new_isolated_slot(self) -> _Slot:
        slot = _Slot(self._new_actor(self._stored_alone))
        try:
            await self._wait_until_ready(slot.actor)
            slot.is_up = True
        except Exception as error:
            raise _no_second_worker(error) from error
        finally:
            if not slot.is_up:
                slot.actor.kill_soon()
        return slot

    @asynccontextmanager
    async def _alone_in(self, slot: _Slot) -> AsyncGenerator[_Slot]:
        """Yield a slot while no other item that may have killed its worker runs there."""
        async with slot.alone:
            while not slot.is_up:
                if slot.failure is not None:
                    raise _no_second_worker(slot.failure) from slot.failure
                await self._changed.wait()
            yield slot

    async def _run(self, remote: _RemoteItem, slot: _Slot | None = None) -> SamplingResult[Any]:
        """
        Run an item once, and settle its budget.

        It runs in the given slot, else in any.
        """
        remote.slot, grant = await self._acquire(remote.item, slot)
        remote.reply = WorkerReply()
        try:
            return await self._call_worker(remote, WorkerJob(item=remote.item, allowance=grant.allowance))
        finally:
            self._allowances.settle(grant, remote.reply)
            _add_usage(remote.reply)

    async def _acquire(self, item: Item[Any], slot: _Slot | None) -> tuple[_Slot, Grant]:
        """
        Wait for a slot and for room in the budget, and hold neither while waiting for the other.

        Otherwise items that wait for a slot would hold the budget that items on their second try need.
        """
        while True:
            chosen = slot or await self._pick_slot()
            grant = await self._allowances.grant(item)
            if slot is not None or chosen.takes_any:
                return chosen, grant
            self._allowances.settle(grant, WorkerReply())

    async def _pick_slot(self) -> _Slot:
        """
        Return the slot with the fewest items.

        Slots without a worker or with suspects are left out, and if no other is left, this waits.
        """
        while not (usable := [slot for slot in self._slots if slot.takes_any]):
            failures = [slot.failure for slot in self._slots if slot.failure is not None]
            if len(failures) == len(self._slots):
                # A copy, because many items may raise it, each with a traceback.
                raise copy.copy(failures[0])
            await self._changed.wait()
        return min(usable, key=lambda slot: slot.in_flight)

    async def _call_worker(self, remote: _RemoteItem, job: WorkerJob) -> SamplingResult[Any]:
        slot, packed = remote.slot, pack_job(job)
        actor, call = slot.actor, str(next(self._calls))
        slot.in_flight += 1
        # From here on, its spending is unknown until it replies.
        remote.reply = None
        names = job.names(self._names)
        try:
            future = actor.submit("sample", call, packed)
            try:
                remote.reply = unpack_reply(await actor.result_of(future), names)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    remote.reply = await self._stop(slot, actor, call, future, names)
                raise
        except ActorLost:
            self._lose(slot, actor, "it died")
            raise
        finally:
            slot.in_flight -= 1
        return _result_of(remote.reply)

    async def _stop(
        self, slot: _Slot, actor: Actor, call: str, future: "Future[Any]", names: dict[str, Any]
    ) -> WorkerReply | None:
        """
        Stop a call on its worker, and return its reply.

        Replace the worker if it does not stop in time.
        """
        with anyio.move_on_after(self._engine.stop_grace_s):  # noqa: ASYNC912 - the wait is one
            actor.submit("stop", call)
            with suppress(ActorLost):
                return unpack_reply(await actor.result_of(future), names)
        self._lose(slot, actor, "it did not stop a cancelled call in time, or it died")
        return None

    def _lose(self, slot: _Slot, actor: Actor, why: str) -> None:
        """Give up a worker, and start another in its slot. Several items may notice its death, but only one counts."""
        if slot.actor is not actor or not slot.is_up:
            return
        slot.is_up = False
        log.warning("worker_ended", why=why, items=slot.in_flight)
        actor.kill_soon()
        if slot in self._slots:
            # In the context of the run, because it serves more than one item.
            self._context.run(lambda: self._starters.start_soon(self._start_again, slot))


_START_HINT: Final = "Check actor_options, the cluster and Ray's logs, or raise start_timeout_s."


def _not_started(message: str, hint: str = _START_HINT) -> WorkerLost:
    error = WorkerLost(message, hint=hint)
    error.maybe_billed = False
    return error


def _died_at_start(why: str) -> WorkerLost:
    missing = re.search(r"No module named '([\w.]+)'", why)
    if missing is not None:
        return _not_started(f"a worker can't start, because it has no module {missing[1]!r}", INSTALL_HINT)
    return _not_started(f"a worker died while it started: {why}")


def _no_second_worker(failure: Exception) -> WorkerLost:
    return WorkerLost(f"the worker that ran this item died, and no other one started: {failure}")


def _add_usage(reply: WorkerReply | None) -> None:
    """Add a worker's usage to the current item."""
    scope = current_item()
    if scope is not None and reply is not None:
        scope.spent += reply.usage
        scope.requests += reply.requests
        scope.attempts += reply.attempts
        scope.estimated_tokens += max(0, reply.tokens - reply.usage.total_tokens)


def _result_of(reply: WorkerReply) -> SamplingResult[Any]:
    if reply.exit is not None:
        raise reply.exit
    if reply.error is not None:
        raise reply.error
    if reply.result is None:
        raise WorkerLost("the worker stopped this item without a request to do so")
    return reply.result
