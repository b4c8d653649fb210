"""The interface to Ray: start it, create actors, call them."""

import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import attrs
from anyio.lowlevel import RunVar

from sampling.errors import MissingExtra
from sampling.fanout.ray._connection import ray, shared_connection
from sampling.fanout.ray._thread import BridgeThread
from sampling.fanout.ray._wire import versions
from sampling.fanout.ray._worker import Worker

try:
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingExtra("the cluster", "ray", "ray") from error

__all__ = ["RESOURCES", "Actor", "ActorLost", "Cluster", "Stored"]

T = TypeVar("T")

RESOURCES = ("num_cpus", "num_gpus", "memory", "resources")
"""The options of an actor that reserve a part of the cluster."""


class ActorLost(Exception):
    """
    The process of an actor is gone.

    It died or can't be reached. Its calls may or may not have finished.
    """


class Stored:
    """
    An object in Ray's store.

    Drop it before the connection is closed. Ray would take a reference that outlives it, in a traceback for instance,
    for one to an object of the next connection, and delete that object with it.
    """

    def __init__(self, ref: Any) -> None:
        self.ref: Any = ref

    def drop(self) -> None:
        """Release the object."""
        self.ref = None


class Actor:
    """A remote process that runs a `Worker`."""

    def __init__(self, handle: Any, shared: Stored, thread: BridgeThread) -> None:
        self._handle = handle
        self._thread = thread
        self._serving = self.submit("serve", shared.ref, versions())

    def submit(self, method: str, *args: Any) -> "Future[Any]":
        """Submit a call of a method of the worker."""
        future: Future[Any] = getattr(self._handle, method).remote(*args).future()
        return future

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the worker, and wait."""
        return await self.result_of(self.submit(method, *args))

    async def result_of(self, future: "Future[T]") -> T:
        """
        Wait for a submitted call.

        Raise the error of the method, or `ActorLost` if the process is gone.
        """
        try:
            return await self._thread.wait(future)
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise ActorLost(str(error)) from error

    async def close(self) -> None:
        """Close the backend of the worker, and wait."""
        self.submit("close")
        await self.result_of(self._serving)

    async def kill(self) -> None:
        """Kill the process. Returns when Ray has accepted the request."""
        await self._thread.run(ray.kill, self._handle)

    def kill_soon(self) -> None:
        """Kill the process without waiting."""
        self._thread.run_soon(ray.kill, self._handle)


@attrs.define(eq=False)
class _Link:
    """The link of one event loop to the connection of the process."""

    users: int = 0
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    thread: BridgeThread | None = None
    must_release: bool = False


class Cluster:
    """
    The cluster of one engine.

    It is connected while a run or a block of the engine needs it.
    """

    def __init__(self, address: str | None, workers: int, options: Mapping[str, Any]) -> None:
        self.address = address
        self._workers = workers
        self._options = options
        self._links: RunVar[_Link] = RunVar("sampling_ray_link")
        """One for each event loop, because threads with event loops of their own may share an engine."""

    def _link(self) -> _Link:
        """Return the link of the current event loop."""
        link = self._links.get(None)
        if link is None:
            link = _Link()
            self._links.set(link)
        return link

    @property
    def thread(self) -> BridgeThread:
        """The thread in which Ray is called."""
        thread = self._link().thread
        if thread is None:
            raise RuntimeError("this cluster is not in use")
        return thread

    async def __aenter__(self) -> Self:
        link = self._link()
        async with link.lock:
            if not link.users:
                await self._connect(link)
            link.users += 1
        return self

    async def _connect(self, link: _Link) -> None:
        thread = await BridgeThread("sampling-ray").__aenter__()
        try:
            await thread.run(self._start, link)
            _handle_sigterm_as_before()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await thread.run(_stop, link)
                await thread.__aexit__(None, None, None)
            raise
        link.thread = thread

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        link = self._link()
        with anyio.CancelScope(shield=True):
            async with link.lock:
                link.users -= 1
                if not link.users:
                    thread, link.thread = self.thread, None
                    await thread.run(_stop, link)
                    await thread.__aexit__(None, None, None)

    def _start(self, link: _Link) -> None:
        link.must_release = shared_connection.acquire(self.address, self._workers, self._options)

    async def unsatisfiable(self, options: Mapping[str, Any]) -> str | None:
        """Return why no node can ever run an actor with these options, or None if one can."""
        wanted = _demands(options)
        if not wanted:
            return None
        nodes: list[dict[str, Any]] = await self.thread.run(ray.nodes)
        offered = [node["Resources"] for node in nodes if node["Alive"]]
        if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in offered):
            return None
        most = {name: max((node.get(name, 0) for node in offered), default=0) for name in wanted}
        return f"each worker needs {_shown(wanted)}, and the most that a node has is {_shown(most)}"

    async def why_not_placed(self, options: Mapping[str, Any]) -> str:
        """Return why an actor has not started, as far as that can be known."""
        problem = await self.unsatisfiable(options)
        if problem is not None:
            return problem
        free: dict[str, Any] = await self.thread.run(ray.available_resources)
        wanted = _demands(options)
        if not wanted:
            return "the cluster is busy, its runtime_env is still being prepared, or backend_factory has not returned"
        left = {name: free.get(name, 0) for name in wanted}
        return f"each worker needs {_shown(wanted)}, and {_shown(left)} are free in the whole cluster"

    async def share(self, packed: bytes) -> Stored:
        """Put an object into Ray's store for all actors."""
        return Stored(await self.thread.run(ray.put, packed))

    def new_actor(self, shared: Stored, *, max_calls: int, options: Mapping[str, Any]) -> Actor:
        """Start an actor. Calls wait until its process is up."""
        kind = ray.remote(Worker)
        # Ray must not retry anything itself: the engine decides what runs again.
        own = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": max_calls}
        # Unless the options say otherwise, an actor reserves no CPU, because it mostly waits for its backend.
        handle = kind.options(**{"num_cpus": 0, **options, **own}).remote(owns_process=True)
        return Actor(handle, shared, self.thread)


def _stop(link: _Link) -> None:
    if link.must_release:
        link.must_release = False
        shared_connection.release()


_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


def _handle_sigterm_as_before() -> None:
    """Install the handler of the program again. Ray puts its own before it, which prints a stack trace."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _demands(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that an actor reserves, by Ray's names for them."""
    demands = {name: options[option] for option, name in _NAMES.items() if options.get(option)}
    return {**demands, **(options.get("resources") or {})}


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
